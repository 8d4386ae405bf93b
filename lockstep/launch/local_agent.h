#pragma once

// The agent of this machine: a keeper below us that owns the ranks, and tails
// of what they write. `lockstep run` uses it directly, `lockstep agent` and
// `lockstep shim` on behalf of a head elsewhere. The keeper and all below it
// are gone when the agent is destroyed.

#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/keeper.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// As the machine calls itself; cores that we may use.
std::string host_name();
int own_cores();

// `program` is the lockstep binary. Makes this process a child subreaper.
Result<std::unique_ptr<Agent>> start_local_agent(
    const os::Path& program,
    KeeperEars ears = KeeperEars::kOpen);

}  // namespace lockstep::launch
