#pragma once

// Ports of this machine that others are told before anybody listens there.

#include "lockstep/base/result.h"

namespace lockstep::launch {

// A port that is free now, of `first`..`last`, or any (both 0). kUnavailable
// and the range when none is.
Result<int> free_port(int first, int last);

}  // namespace lockstep::launch
