#pragma once

// Runs a set-up command at the far end, once for each content of command and
// folder. Two sessions that want the same one wait for each other. The command
// and what it started end when `gone` says that nobody waits any more.

#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

// {folder, command, patience (seconds)}: {ran, output}.
Result<nlohmann::json> run_far_setup(
    const os::Path& home,
    const nlohmann::json& request,
    const std::function<bool()>& gone);

}  // namespace lockstep::reach
