#pragma once

// The `file_mounts` of a job: every source as a path on this machine, then a
// link in the workdir here, or a copy on a node.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/commands/far_nodes.h"
#include "lockstep/launch/job.h"

namespace lockstep::commands {

// Fetches and unpacks what must be; says so in the log. Errors name the key.
Result<std::vector<Mount>> resolve_mounts(const launch::Job& job);

// For runs that start in the workdir itself: this machine, and Slurm's nodes,
// which share it.
Result<void> mount_here(const launch::Job& job);

}  // namespace lockstep::commands
