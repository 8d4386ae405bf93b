#include "lockstep/launch/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr int kMostSlots = 4096;
constexpr std::string_view kBlank = " \t\r\f\v";

Error bad(const std::string& place, const std::string& what) {
  return Error(ErrorCode::kInvalidInput, fmt::format("{}: {}", place, what));
}

// Quoted in a message: what a file holds need not be text.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return "'" + out + (text.size() > 60 ? "...'" : "'");
}

Result<int> parse_slots(std::string_view text, const std::string& place) {
  int slots = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 ||
      slots > kMostSlots) {
    return bad(
        place,
        fmt::format(
            "{} is not a number of slots; accepted: 1 to {}",
            shown(text),
            kMostSlots));
  }
  return slots;
}

bool is_host_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._@%:").find(c) != std::string_view::npos;
}

// "a", "a:4", "user@a", "[fe80::1]:2", "fe80::1" (more than one colon and no
// brackets: an address without slots).
Result<HostSlots> parse_host(std::string_view text, const std::string& place) {
  HostSlots host;
  std::string_view slots;
  bool has_slots = false;
  const size_t open = text.find('[');
  if (open != std::string_view::npos) {
    const size_t close = text.find(']', open);
    if (close == std::string_view::npos) {
      return bad(place, fmt::format("{} has no ']'", shown(text)));
    }
    host.host = std::string(text.substr(0, open)) +
                std::string(text.substr(open + 1, close - open - 1));
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') {
      return bad(
          place, fmt::format("{}: only ':SLOTS' may follow ']'", shown(text)));
    }
    has_slots = !rest.empty();
    slots = has_slots ? rest.substr(1) : rest;
  } else if (std::ranges::count(text, ':') == 1) {
    const size_t colon = text.find(':');
    host.host = text.substr(0, colon);
    slots = text.substr(colon + 1);
    has_slots = true;
  } else {
    host.host = text;
  }
  const std::string_view name =
      std::string_view(host.host).substr(host.host.find('@') + 1);
  if (name.empty() || host.host.starts_with('-') ||
      host.host.starts_with('@') ||
      !std::ranges::all_of(host.host, is_host_character)) {
    return bad(
        place,
        fmt::format(
            "{} is not a host; accepted: NAME, USER@NAME, an address, each "
            "with ':SLOTS'",
            shown(text)));
  }
  if (has_slots) {
    LOCKSTEP_ASSIGN(
        host.slots,
        parse_slots(slots, fmt::format("{}: {}", place, shown(text))));
  }
  return host;
}

}  // namespace

Result<std::vector<HostSlots>> parse_hosts(
    std::string_view text,
    const std::string& place) {
  std::vector<HostSlots> hosts;
  std::string_view rest = text;
  while (true) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view word = trim(rest.substr(0, end));
    if (word.empty()) {
      return bad(
          place,
          fmt::format("{} has an empty name; accepted: a,b:4", shown(text)));
    }
    LOCKSTEP_ASSIGN(HostSlots host, parse_host(word, place));
    if (std::ranges::find(hosts, host.host, &HostSlots::host) != hosts.end()) {
      return bad(
          place,
          fmt::format(
              "{} stands twice; give it more ranks with '{}:N'",
              shown(host.host),
              host.host));
    }
    hosts.push_back(std::move(host));
    if (end == rest.size()) {
      return hosts;
    }
    rest.remove_prefix(end + 1);
  }
}

Result<std::vector<HostSlots>> parse_hostfile(
    std::string_view text,
    const std::string& file) {
  std::vector<HostSlots> hosts;
  std::map<std::string, int> lines;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string place = fmt::format("{}:{}", file, number);
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    const size_t space = std::min(line.find_first_of(kBlank), line.size());
    LOCKSTEP_ASSIGN(HostSlots host, parse_host(line.substr(0, space), place));
    std::string_view rest = trim(line.substr(space));
    while (!rest.empty()) {
      const size_t word_end = std::min(rest.find_first_of(kBlank), rest.size());
      const std::string_view word = rest.substr(0, word_end);
      rest = trim(rest.substr(word_end));
      constexpr std::string_view kSlots = "slots=";
      if (!word.starts_with(kSlots)) {
        return bad(
            place,
            fmt::format(
                "{} is not known; accepted: 'HOST', 'HOST slots=N', 'HOST:N'",
                shown(word)));
      }
      if (host.slots) {
        return bad(
            place, fmt::format("slots of {} stand twice", shown(host.host)));
      }
      LOCKSTEP_ASSIGN(
          host.slots, parse_slots(word.substr(kSlots.size()), place));
    }
    const auto [found, is_new] = lines.emplace(host.host, number);
    if (!is_new) {
      return bad(
          place,
          fmt::format(
              "{} stands already in line {}; give it more ranks with slots=N",
              shown(host.host),
              found->second));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    return bad(file, "no host in it; accepted: lines of 'HOST slots=N'");
  }
  return hosts;
}

Result<std::vector<int>> ranks_by_host(
    const std::vector<HostSlots>& hosts,
    int nodes,
    int procs,
    const std::vector<int>& by_facts) {
  if (nodes > static_cast<int>(hosts.size())) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{} nodes are wanted and there {} {}",
                   nodes,
                   hosts.size() == 1 ? "is" : "are",
                   hosts.size() == 1 ? "1 host"
                                     : fmt::format("{} hosts", hosts.size())))
        .with_fix("name more hosts, or lower --nodes");
  }
  const size_t count = nodes > 0 ? static_cast<size_t>(nodes) : hosts.size();
  std::vector<int> ranks;
  for (size_t i = 0; i < count; ++i) {
    const HostSlots& host = hosts[i];
    if (procs > 0 && host.slots && procs > *host.slots) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format(
                     "{} ranks are wanted on {}, which has {} {}",
                     procs,
                     host.host,
                     *host.slots,
                     *host.slots == 1 ? "slot" : "slots"))
          .with_fix("lower --procs, or raise its slots");
    }
    const int facts = i < by_facts.size() ? std::max(1, by_facts[i]) : 1;
    ranks.push_back(procs > 0 ? procs : host.slots.value_or(facts));
  }
  return ranks;
}

}  // namespace lockstep::launch
