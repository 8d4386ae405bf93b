#include "lockstep/launch/redaction.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/launch/shell.h"

namespace lockstep::launch {

std::vector<std::string> redact(
    const Job& job,
    std::vector<std::string> words) {
  for (std::string& word : words) {
    word = redact(job, std::move(word));
  }
  return words;
}

std::string shown_line(const Job& job, const std::vector<std::string>& words) {
  // Once more: a value may stand in several words.
  return redact(job, shell_line(redact(job, words)));
}

bool EventMask::may_concern(const std::string& line) const {
  const auto stands = [&](const std::string& text) {
    return line.find(text) != std::string::npos;
  };
  // Behind an escape any text may stand.
  return !hidden_.empty() && (line.find('\\') != std::string::npos ||
                              std::ranges::any_of(hidden_, stands));
}

wire::Event EventMask::masked(const wire::Event& event) const {
  // Known fields alone: one level of maps, however deep the line was.
  const auto whole = nlohmann::json::parse(wire::to_json(event));
  auto shown = nlohmann::json::object();
  for (const auto& [name, value] : whole.items()) {
    if (value.is_object()) {
      auto& map = shown[name] = nlohmann::json::object();
      for (const auto& [key, item] : value.items()) {
        map[hide(key)] = item.is_string()
                             ? nlohmann::json(hide(item.get<std::string>()))
                             : item;
      }
    } else {
      shown[name] = value.is_string() && name != "kind"
                        ? nlohmann::json(hide(value.get<std::string>()))
                        : value;
    }
  }
  auto read = wire::parse_event(
      shown.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  // Rather no event than one text too many.
  return read ? *std::move(read)
              : wire::Event{event.time, event.rank, "", wire::Phase{"***"}};
}

std::string EventMask::hide(std::string text) const {
  return mask(hidden_, std::move(text));
}

}  // namespace lockstep::launch
