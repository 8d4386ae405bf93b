#include "lockstep/launch/masks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/reach/content.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

os::Path masks_path(const record::RunDirectory& run) {
  return run.path() / ".masks";
}

uint32_t check_of(uint64_t rolled) {
  // The high bits depend on all of it.
  return static_cast<uint32_t>((rolled * 0x9E3779B97F4A7C15ULL) >> 48);
}

std::string text_of(const std::string& salt, std::string_view value) {
  return reach::sha256_of(salt + std::string(value));
}

}  // namespace

Masks Masks::of(const Job& job) {
  Masks masks;
  masks.salt_ = to_hex(make_key());
  for (const std::string& text : secret_texts(job)) {
    if (text.find('\n') == std::string::npos) {
      masks.prints_.push_back(
          {text.size(),
           check_of(masks.rolled(text)),
           text_of(masks.salt_, text)});
    }
  }
  return masks;
}

Masks Masks::read(const record::RunDirectory& run) {
  Masks masks;
  const auto text = os::real_files().read(masks_path(run));
  if (!text) {
    return masks;
  }
  try {
    const json told = json::parse(*text);
    masks.salt_ = told.at("salt").get<std::string>();
    for (const json& one : told.at("prints")) {
      masks.prints_.push_back(
          {one.at("size").get<size_t>(),
           one.at("check").get<uint32_t>(),
           one.at("sha256").get<std::string>()});
    }
  } catch (const json::exception& error) {
    log_warning(masks_path(run).string() + ": " + error.what());
  }
  std::erase_if(masks.prints_, [](const Print& one) { return one.size == 0; });
  return masks;
}

Result<void> Masks::write(const record::RunDirectory& run) const {
  if (prints_.empty()) {
    return {};
  }
  json told = {{"salt", salt_}, {"prints", json::array()}};
  for (const Print& one : prints_) {
    told["prints"].push_back(
        {{"size", one.size}, {"check", one.check}, {"sha256", one.hash}});
  }
  return os::write_private(masks_path(run), told.dump() + "\n");
}

std::string Masks::apply(std::string line) const {
  for (const Print& print : prints_) {
    hide(print, line);
  }
  return line;
}

// Of a polynomial; odd, so that no byte is lost.
uint64_t Masks::base() const {
  uint64_t base = 0;
  for (const char c : salt_) {
    base = base * 31 + static_cast<unsigned char>(c);
  }
  return base | 1;
}

uint64_t Masks::rolled(std::string_view text) const {
  const uint64_t base = this->base();
  uint64_t sum = 0;
  for (const char c : text) {
    sum = sum * base + static_cast<unsigned char>(c);
  }
  return sum;
}

bool Masks::is(const Print& print, uint64_t rolled, std::string_view text)
    const {
  return check_of(rolled) == print.check && text_of(salt_, text) == print.hash;
}

void Masks::hide(const Print& print, std::string& line) const {
  if (line.size() < print.size) {
    return;
  }
  const uint64_t base = this->base();
  uint64_t leaving = 1;  // what the first byte of a window counts
  for (size_t i = 1; i < print.size; ++i) {
    leaving *= base;
  }
  std::string shown;
  size_t kept = 0;  // up to here `line` is in `shown`
  size_t at = 0;
  uint64_t sum = rolled(std::string_view(line).substr(0, print.size));
  while (at + print.size <= line.size()) {
    if (is(print, sum, std::string_view(line).substr(at, print.size))) {
      shown.append(line, kept, at - kept).append("***");
      at += print.size;
      kept = at;
      sum = rolled(std::string_view(line).substr(at, print.size));
      continue;
    }
    sum -= leaving * static_cast<unsigned char>(line[at]);
    ++at;
    if (at + print.size <= line.size()) {
      sum = sum * base + static_cast<unsigned char>(line[at + print.size - 1]);
    }
  }
  if (kept > 0) {
    line = shown.append(line, kept);
  }
}

}  // namespace lockstep::launch
