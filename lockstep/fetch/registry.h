#pragma once

// Packages by name and version from the registries a machine already trusts:
// npm and the distribution's. The registry's own program does the work and the
// checking; its last lines are kept in the error.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/os/process.h"

namespace lockstep::fetch {

// Runs a program to its end, its output in `log`. Not found: `fix` says how
// to get it. A failure carries the last lines of the log.
Result<void> run_tool(
    os::Processes& processes,
    const std::vector<std::string>& argv,
    const os::Path& folder,
    const os::Path& log,
    Duration limit,
    const std::string& fix);

// `npm pack NAME@VERSION` in `folder`; the path of the archive.
Result<os::Path> npm_pack(
    os::Processes& processes,
    const std::string& package,
    const os::Path& folder);

// Installs a package of the distribution when we are root; else the error's
// fix is the command.
Result<void> apt_install(
    os::Processes& processes,
    const std::string& package,
    const os::Path& folder);

}  // namespace lockstep::fetch
