#pragma once

// What is known about a run while it goes on, from its events alone: the
// coordinator keeps one, and so does a front end that only follows files. Rates
// come from each rank's own clock, so clocks that differ between nodes do not
// matter. Pure.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "lockstep/wire/event.h"

namespace lockstep::launch {

struct LiveState {
  int ranks_started = 0;
  int ranks_ended = 0;
  int64_t step = 0;
  int64_t total_steps = 0;  // 0: unknown
  int64_t epoch = 0;
  bool any_iteration = false;
  std::string phase;
  std::map<std::string, double> metrics;  // last values
  double samples_per_second = 0;          // over the last seconds, all ranks
  double seconds_per_step = 0;
  // Until the program ends by its own clock (trainer.max_seconds), as of the
  // last iteration; none: it has no such limit.
  std::optional<double> seconds_left;
  int64_t checkpoint_bytes = 0;  // of one; 0: the program did not say
};

class LiveTracker {
 public:
  void take(const wire::Event& event);
  void rank_started() { ++state_.ranks_started; }
  void rank_ended() { ++state_.ranks_ended; }
  // A new generation: nothing started, nothing ended.
  void restart() { *this = LiveTracker(); }
  const LiveState& state() const { return state_; }

 private:
  struct Sample {
    double time = 0;
    int64_t samples = 0;
  };
  // The last iterations of a rank. The first entry only says when the second
  // began.
  struct Window {
    std::deque<Sample> entries;
    int64_t samples = 0;        // of all but the first
    double rate = 0;            // 0: not known yet
    int64_t step = 0;           // the last one
    std::optional<double> end;  // of its limit in seconds, by its clock
  };
  void take_iteration(const wire::Event& event, const wire::Iteration& done);
  LiveState state_;
  std::map<int, Window> windows_;  // by rank
};

}  // namespace lockstep::launch
