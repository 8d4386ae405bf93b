#pragma once

// Finds programs as exec would, so that one that is not there is told before
// anything starts.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// By its path or in `path` (as in PATH); empty when it is not there or not
// executable.
os::Path find_program(const std::string& name, const std::string& path);

// An error with what to do when `program` cannot be run from `workdir`.
Result<void> check_program(
    const std::string& program,
    const os::Path& workdir,
    const std::string& path);

}  // namespace lockstep::launch
