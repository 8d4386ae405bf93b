#include "lockstep/launch/refusals.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

constexpr Duration kPause = std::chrono::seconds(10);
constexpr size_t kMostKinds = 32;  // a stranger may cause many

}  // namespace

Refusals::~Refusals() {
  for (auto& [why, kind] : kinds_) {
    tell(why, kind);
  }
}

void Refusals::take(const std::string& address, std::string why) {
  ++count_;
  if (why.starts_with(address + " ")) {
    why.erase(0, address.size() + 1);
  }
  if (const size_t at = why.find(address); at != std::string::npos) {
    why.replace(at, address.size(), "it");
  }
  if (kinds_.size() >= kMostKinds && !kinds_.contains(why)) {
    why = "was refused for other reasons";
  }
  const auto [found, is_new] = kinds_.try_emplace(std::move(why));
  Kind& kind = found->second;
  kind.last = address;
  if (is_new) {
    kind.told = clock_.now();
    log_warning(
        fmt::format("refused a connection: {} {}", address, found->first));
  } else {
    ++kind.untold;
  }
}

void Refusals::look() {
  const os::Instant now = clock_.now();
  for (auto& [why, kind] : kinds_) {
    if (kind.untold > 0 && now - kind.told >= kPause) {
      kind.told = now;
      tell(why, kind);
    }
  }
}

void Refusals::tell(const std::string& why, Kind& kind) {
  if (kind.untold > 0) {
    log_warning(
        fmt::format(
            "refused {} more connections, the last: {} {}",
            kind.untold,
            kind.last,
            why));
    kind.untold = 0;
  }
}

}  // namespace lockstep::launch
