#pragma once

// Work before a run has begun, which Ctrl-C ends at once: nothing that it
// started here or elsewhere is left.

#include <functional>

#include "lockstep/base/result.h"
#include "lockstep/launch/stop_signals.h"

namespace lockstep::commands {

// Runs `action` beside a look at the signals. When one comes, `clean` ends what
// the action began on other machines (it may be empty), our children are ended,
// and the process exits with 130.
Result<void> interruptible(
    launch::StopSignals& signals,
    const std::function<Result<void>()>& action,
    const std::function<void()>& clean = {});

}  // namespace lockstep::commands
