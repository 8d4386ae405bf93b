#pragma once

// Work before a run has begun, which Ctrl-C ends at once: nothing that it
// started here or elsewhere is left.

#include <functional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {

// What ends such work when it takes too long.
struct TimeLimit {
  os::Deadline deadline = os::Deadline::never();
  int exit_code = 0;
  std::string reason;  // "max_duration 4h 00m"
  std::string before = "the run began";
};

// Runs `action` beside a look at the signals. When one comes, `clean` ends what
// the action began on other machines (it may be empty), our children are ended,
// and the process exits with 130; at the limit likewise, with its code.
Result<void> interruptible(
    launch::StopSignals& signals,
    const std::function<Result<void>()>& action,
    const std::function<void()>& clean = {},
    const TimeLimit& limit = {});

}  // namespace lockstep::commands
