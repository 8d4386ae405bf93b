#pragma once

// Tells a rank that hangs from one that is slow, by its own pace: how long its
// recent steps took, and how long its pauses were. Pauses that have a reason
// (before the first steps, a phase that is not training, the end after the
// last step) get a generous limit. Only ranks that show steps are watched: of a
// program that says nothing, nothing can be said. Times are those at which the
// head heard of things, so clocks of nodes do not matter. Pure; one thread.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/os/clock.h"
#include "lockstep/wire/event.h"

namespace lockstep::launch {

// Nobody hangs sooner than this, however quick its steps are.
inline constexpr Duration kShortestHang = std::chrono::seconds(10);
// Without any sign before the first step.
inline constexpr Duration kFirstStep = std::chrono::minutes(10);
// In validation and other phases, and while a rank is busy.
inline constexpr Duration kLongPause = std::chrono::minutes(5);

struct Stall {
  struct Rank {
    int rank = 0;
    int64_t step = 0;  // its last one
    Duration silent{};
    std::string phase;  // empty: training
  };
  // All that are overdue, or silent for half their limit while another is; the
  // furthest behind first.
  std::vector<Rank> ranks;
  int64_t ahead = 0;    // the highest step of any rank
  bool behind = false;  // the first is alone at the lowest step
  Duration usual{};     // the usual time of a step; 0: not known
  // Busy or not, this took too long. Else a rank that computes or writes may
  // be doing something long that it did not tell of.
  bool firm = false;
};

class Pace {
 public:
  // `after`: the limit from the first step on; none: by the pace.
  explicit Pace(std::optional<Duration> after = {}) : after_(after) {}

  // A new generation: nobody has done anything. What pauses are usual stays
  // known.
  void begin();
  void started(int rank, os::Instant now);
  void ended(int rank);
  void take(const wire::Event& event, os::Instant now);
  // We ourselves did not look for so long: nobody's fault.
  void forgive(Duration gap);
  // The ranks that take too long now; none when all is well.
  std::optional<Stall> check(os::Instant now) const;
  // The last step of a rank; -1 when it showed none.
  int64_t step_of(int rank) const;

 private:
  struct Rank {
    os::Instant last;        // sign of progress
    bool told = false;       // it wrote an event of its own
    int64_t step = -1;       // -1: none yet
    int64_t steps_seen = 0;  // in this generation
    os::Instant last_step;
    std::string phase;
    std::deque<Duration> gaps;  // between the last steps
    Duration longest{};         // pause between signs, after the warm-up
  };
  struct Limits {
    Duration soft{}, firm{};
  };
  bool pauses(const Rank& rank) const;
  Limits limits(const Rank& rank) const;

  std::optional<Duration> after_;
  std::map<int, Rank> ranks_;
  int64_t total_steps_ = 0;
  Duration longest_{};  // pause of any rank in earlier generations
};

}  // namespace lockstep::launch
