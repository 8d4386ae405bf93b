#pragma once

// The tiny process that owns the ranks of a node. It is a child subreaper in
// its own session: whatever a rank starts, in whatever process group or
// session, stays below it. When the process that holds the other end of its
// socket is gone (kill -9 included), it ends everything and goes too. When the
// keeper itself is killed, ranks get SIGKILL as their parent dies, and what
// they left falls to the agent, which is a subreaper as well.
//
// An agent may renew its lease with the keeper. When it does not, because it is
// stopped or hangs, the keeper ends the ranks as if it were gone; one that then
// stays silent for much longer gets SIGKILL, so that it is not left behind.
//
// Ending: the signal to every rank's process group, SIGKILL to all descendants
// when the grace has passed, until none is left. What ranks leave behind when
// all of them have ended gets SIGTERM and half a second. A rank's `after` is
// started when the rank is gone and is spared by all this for a while.

#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/keeper_protocol.h"
#include "lockstep/os/file.h"
#include "lockstep/os/process.h"

namespace lockstep::launch {

// Who may end a keeper by SIGTERM. Slurm sends one to every process of a job:
// below a shim the shim alone acts on it.
enum class KeeperEars { kOpen, kDeaf };

// The hidden verb `lockstep keeper FD [deaf]`: serves until the peer is gone
// and no process is left. The exit code.
int keeper_main(int descriptor, KeeperEars ears);

// Starts a keeper from `program` (the lockstep binary).
struct KeeperHandle {
  std::unique_ptr<os::Process> process;
  std::unique_ptr<KeeperChannel> channel;
};
Result<KeeperHandle> start_keeper(const os::Path& program, KeeperEars ears);

}  // namespace lockstep::launch
