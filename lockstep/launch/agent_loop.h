#pragma once

// What an agent and a shim do all day: dial the head, take its commands, report
// what happens, send what ranks print, and end the ranks when the lease is
// over. Reports wait here until the head has heard them, bytes of logs in their
// files; memory does not grow with either. One thread, one poll().

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/agent_protocol.h"

namespace lockstep::launch {

struct AgentLoopOptions {
  Key key{};
  Join join;  // node, host, cores, gpus; the addresses are found
  std::vector<std::string> head_addresses;
  // Makes the agent that runs the ranks; again after it was lost.
  std::function<Result<std::unique_ptr<Agent>>()> make_agent;
  // Changes a start before it is done; may be empty.
  std::function<void(StartRequest&)> adapt;
  // Called once, when the head said welcome or when it is clear that it will
  // not; may be empty.
  std::function<void(const Result<void>&)> on_joined;
  // Asked until then: whether nobody waits for us any more; may be empty.
  std::function<bool()> is_abandoned;
  // What stands of the cloud's notices about this machine; asked often, so it
  // must answer at once; may be empty.
  std::function<std::optional<NodeNotice>()> notice;
  // Readable when the process should stop; -1: none. `on_stop` reads it and
  // gives the signal that came, 0: none.
  int stop_descriptor = -1;
  std::function<int()> on_stop;
  // A shim is done when its rank is, an agent when the head says so.
  bool until_idle = false;
  Duration patience = std::chrono::seconds(20);  // for the first welcome
  Duration rejoin = kRejoin;
};

struct AgentLoopEnd {
  // Of the last rank that ended; for a shim its own.
  os::ExitStatus status;
  bool ran = false;       // any rank
  bool said_bye = false;  // the head did: it has all that it wants
  bool heard = false;     // the head has every report and byte of ours
};

// Until the head says bye, it stays away for longer than `rejoin`, or the
// process is stopped; then no rank is left. An error: it never joined.
Result<AgentLoopEnd> run_agent_loop(AgentLoopOptions options);

}  // namespace lockstep::launch
