#pragma once

// Starts a program that outlives us: in a session of its own, nobody's child
// here, with nothing of ours open. What it must know goes to its standard
// input, never into argv; it answers with one line on standard output.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"

namespace lockstep::launch {

// The line, without its end. An error holds what the program wrote to standard
// error when it ended without a line; past the deadline it is left as it is.
// `caller`: a stream to whoever asked us to; when that breaks nobody wants the
// line, and we give up. The program finds its standard output broken, too.
Result<std::string> start_detached(
    const std::vector<std::string>& argv,
    const std::string& input,
    os::Deadline deadline,
    int caller = -1);

}  // namespace lockstep::launch
