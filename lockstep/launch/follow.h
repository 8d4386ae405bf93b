#pragma once

// A run directory that somebody else writes, shown to a person: what its head
// said, the output of ranks, how far it is. When the run lives on another
// machine a Mirror (mirror.h) brings the directory here first, so that showing
// is the same for both.

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// Brings a mirror up to date. Runs on this machine need none.
class Mirror {
 public:
  virtual ~Mirror() = default;
  // Fetches what is new in logs, events and the head's words, and waits a
  // moment when nothing is. True: all that was there is here. kUnavailable: the
  // head cannot be reached now (try again).
  virtual Result<bool> update(os::Deadline deadline) = 0;
  // As the head told it last.
  virtual const RunStateFile& state() const = 0;
  // Asks the head to stop the run: gracefully, or `now`.
  virtual Result<void> stop(bool now) = 0;
  // What nobody else told about the end of the run; empty: its head did.
  virtual std::string conclusion() const { return ""; }
  // Everything else that the run left: checkpoints, pictures, tables; only what
  // changed. Once the run has ended, our state.json says so too. No more than
  // `most`, checkpoints last: kNoSpace names what did not fit into that, and
  // all else is here.
  virtual Result<void> fetch_all(std::optional<Bytes> most) = 0;
};

struct FollowOptions {
  bool show_output = true;
  std::optional<int> rank;  // only this one; none: rank 0, or all
  bool all_ranks = false;
  bool from_start = false;  // output from the beginning, or from now on
  // Asked when the head cannot be reached: another host of the run that
  // answers while the head still does not. Then the head is lost, and not our
  // own network. May take some seconds; empty: nobody, or the head is back.
  std::function<std::string()> witness;
  // Asked first: why the head will never answer again; empty: it may.
  std::function<std::string()> gone;
};

// What the person who watches wants; asked often.
enum class Wish {
  kNothing,
  kStop,   // the run gracefully
  kKill,   // the run at once
  kLeave,  // the run alone
};

// Shows the run until it has ended, or until kLeave; its state then. A head
// that cannot be reached for a while is waited for, unless a witness tells that
// it is gone: then the run is "lost".
Result<RunStateFile> follow(
    const record::RunDirectory& run,
    Mirror* mirror,
    Console& console,
    const FollowOptions& options,
    const std::function<Wish()>& wish);

}  // namespace lockstep::launch
