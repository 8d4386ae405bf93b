#pragma once

// Old content goes: programs and sets that were sent and that nobody used for
// a long time. Use is the time of the folder or file, which mark_used sets.

#include "lockstep/base/units.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

inline constexpr Duration kUnused = std::chrono::hours(24 * 90);

void mark_used(const os::Path& path);
// Removes what lies in `folder` and was not used for `age`. What cannot be
// removed stays; processes that run from it are not disturbed.
void prune(const os::Path& folder, Duration age = kUnused);

}  // namespace lockstep::reach
