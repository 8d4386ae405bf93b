#pragma once

// Starts agents on nodes. Local is here; ssh, mpi and slurm implement the same
// words. A launcher owns what reaches a node; agents own what runs there.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual std::string name() const = 0;
  // The nodes with their facts, first the head; `procs` 0: by GPU, else 1.
  virtual Result<std::vector<PlannedNode>> nodes(int procs) = 0;
  // The nodes with an agent on each, in the order of nodes(). Called again for
  // a new generation when a node was lost.
  virtual Result<std::unique_ptr<NodeGroup>> start_agents() = 0;
  // Where ranks of all nodes reach the coordinator and the first rank.
  virtual std::string head_address() const = 0;
};

// This machine: a keeper process under `program` (the lockstep binary).
std::unique_ptr<Launcher> make_local_launcher(os::Path program);

}  // namespace lockstep::launch
