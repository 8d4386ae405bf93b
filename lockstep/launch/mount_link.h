#pragma once

// What was brought for `file_mounts` appears in the workdir as a link, so it
// is there once however often it is mounted.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// Makes workdir/name (an absolute name stands as it is) a link to `target`, and
// gives its path. A link that is there and leads into `ours` is replaced (any
// link when `ours` is empty); what else is there is never touched: kExists,
// unless it is the target itself.
Result<os::Path> link_mount(
    const os::Path& target,
    const os::Path& workdir,
    const std::string& name,
    const os::Path& ours = {});

}  // namespace lockstep::launch
