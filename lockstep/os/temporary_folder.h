#pragma once

#include "lockstep/os/file.h"

namespace lockstep::os {

// TMPDIR's, or /tmp where that names no folder: what was meant for another
// machine must not end a command here.
Path temporary_folder();

}  // namespace lockstep::os
