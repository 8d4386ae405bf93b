#pragma once

// A run directory that somebody else writes: shown on a terminal, and, when it
// lies on another machine, mirrored into ours file by file, by offset. What was
// mirrored is never fetched again; what was missed comes when we are back, to
// the last byte.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// Brings a mirror up to date. Local runs need none.
class Mirror {
 public:
  virtual ~Mirror() = default;
  // Fetches what is new; returns quickly when nothing is. kUnavailable: the
  // head cannot be reached now (try again).
  virtual Result<void> update(os::Deadline deadline) = 0;
  // Asks the head to stop the run: gracefully, or `now`.
  virtual Result<void> stop(bool now) = 0;
  // Everything that the run left, checkpoints and pictures included.
  virtual Result<void> fetch_all() = 0;
};

struct FollowOptions {
  bool show_output = true;
  std::optional<int> rank;  // only this one; none: rank 0, or all
  bool all_ranks = false;
  bool from_start = false;  // output from the beginning, or from now on
};

// Shows the run until it has ended; its state then. `interrupted` is asked
// often: 1 stops the run gracefully, 2 kills it.
Result<RunStateFile> follow(
    const record::RunDirectory& run,
    Mirror* mirror,
    Console& console,
    const FollowOptions& options,
    const std::function<int()>& interrupted);

}  // namespace lockstep::launch
