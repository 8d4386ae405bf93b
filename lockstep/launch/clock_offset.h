#pragma once

// Where the monotonic clock of another machine stands against ours, from
// messages that carry its time of sending. The quickest message of the last
// half minute counts, so neither a busy sender nor a busy receiver shifts an
// instant, and the drift of clocks stays below the way of a message. Wall
// clocks play no part. Pure.

#include <deque>

#include "lockstep/os/clock.h"

namespace lockstep::launch {

class ClockOffset {
 public:
  // A message that was sent at `there` came at `here`.
  void take(os::Instant there, os::Instant here);
  // An instant of the other clock on ours, `now` at the latest; `now` when no
  // message came yet.
  os::Instant to_here(os::Instant there, os::Instant now) const;
  // The other end is another one, or was away.
  void reset() { samples_.clear(); }

 private:
  struct Sample {
    os::Instant at;
    Duration gap;
  };
  std::deque<Sample> samples_;  // by time, gaps rising: the first is the least
};

}  // namespace lockstep::launch
