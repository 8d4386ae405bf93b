#include "lockstep/launch/clock_offset.h"

#include <algorithm>

namespace lockstep::launch {

void ClockOffset::take(os::Instant there, os::Instant here) {
  constexpr Duration kWindow = std::chrono::seconds(30);
  const Duration gap = here - there;
  while (!samples_.empty() && samples_.back().gap >= gap) {
    samples_.pop_back();
  }
  samples_.push_back({here, gap});
  while (here - samples_.front().at > kWindow) {
    samples_.pop_front();
  }
}

os::Instant ClockOffset::to_here(os::Instant there, os::Instant now) const {
  return samples_.empty() ? now : std::min(there + samples_.front().gap, now);
}

}  // namespace lockstep::launch
