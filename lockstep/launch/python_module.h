#pragma once

// python/lockstep.py, carried inside this program so that it is on every node
// that runs ranks, whatever came there. Thread-safe.

#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// The folder's variable for the ranks; also the last entry of PYTHONPATH.
inline constexpr const char* kPythonFolder = "LOCKSTEP_PYTHON";

std::string_view python_module();

// Names the folder to a rank: what the user has in PYTHONPATH comes first, so
// that a module of the same name there is found before ours.
void add_python_folder(const os::Path& folder, Environment& environment);

// Writes lockstep.py into the folder, unless this one is there already.
Result<void> place_python_module(os::FileSystem& files, const os::Path& folder);

}  // namespace lockstep::launch
