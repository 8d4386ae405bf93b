#pragma once

// What files that were written atomically (file.h) leave behind when their
// writer is killed half way.

#include "lockstep/os/file.h"

namespace lockstep::os {

// Removes from `folder` the temporary files of a process that has ended.
void remove_unfinished(const Path& folder, int pid);

}  // namespace lockstep::os
