#pragma once

// The node's side of a run: `lockstep agent` (many ranks under a keeper,
// started by the far end) and `lockstep shim -- PROG` (one rank, started by
// mpirun or srun, whose environment the rank keeps). Both dial the head, prove
// the key, take its commands, and end their ranks when the lease is over.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// Begins to look for notices about this machine, and gives the function that
// tells what stands, at once (AgentLoopOptions::notice).
using NoticeMaker = std::function<std::function<std::optional<NodeNotice>()>()>;

// What an agent is told on its standard input, as JSON: never in argv.
struct AgentSpec {
  std::string run_id;
  std::string key;  // hexadecimal
  int node = 0;
  std::vector<std::string> head_addresses;  // "10.0.0.1:4711", tried in order
  os::Path folder;    // of this run on this node; made when absent
  bool spot = false;  // its machine may be taken away: notices are asked for
};
Result<AgentSpec> parse_agent_spec(const std::string& json);
std::string to_json(const AgentSpec& spec);

// Reads the spec from standard input. Writes one line to standard output once
// the head said welcome ("joined") or when it cannot ("failed: reason"), then
// leaves the session and closes its standard streams: the far end reads that
// line. The exit code.
int agent_main(const os::Path& own_program, const NoticeMaker& notices = {});

// LOCKSTEP_SHIM (JSON as above, node ignored) is in the environment; the rank
// comes from OMPI_COMM_WORLD_RANK, PMIX_RANK or SLURM_PROCID. The rank's
// environment is the inherited one plus what the head's start says. Exits as
// its rank did.
int shim_main(
    const os::Path& own_program,
    const std::vector<std::string>& argv);

}  // namespace lockstep::launch
