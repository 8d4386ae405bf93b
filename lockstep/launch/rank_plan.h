#pragma once

// Which rank runs where, and the environment each one gets: the rank
// environment of docs/operations.md, whoever wrote the program. Pure: the
// inherited environment and the facts of the machine are given.

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::launch {

using Environment = std::map<std::string, std::string>;

// A node as the plan sees it.
struct PlannedNode {
  std::string host;
  int procs = 1;
  int cores = 1;          // for OMP_NUM_THREADS
  std::string interface;  // that reaches the head; "lo" on one machine
};

struct RankSlot {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
};

struct RankPlan {
  std::vector<PlannedNode> nodes;
  std::vector<RankSlot> slots;  // by rank
  int world_size() const { return static_cast<int>(slots.size()); }
};

// Ranks node by node, in the order of the nodes. Every node needs one at
// least.
Result<RankPlan> plan_ranks(std::vector<PlannedNode> nodes);

// What is the same for all ranks of a generation.
struct GenerationFacts {
  std::string run_id;
  std::string run_directory;
  std::string events_directory;  // empty: ranks/ of the run directory
  std::string master_address;
  int master_port = 0;
  std::string coordinator;  // address of the rendezvous
  std::string key_file;
  int generation = 0;
  int max_restarts = 0;
};

// `inherited` without what another launcher left there, then the rank's own
// variables, then `wanted` (the job's envs and secrets), which win.
Environment rank_environment(
    const RankPlan& plan,
    const RankSlot& slot,
    const GenerationFacts& facts,
    const Environment& inherited,
    const Environment& wanted);

// `inherited` without SLURM_*, OMPI_*, PMIX_*, PMI_*, TORCHELASTIC_* and other
// traces of a launcher that is not ours.
Environment without_launchers(const Environment& inherited);

// True for names that a job must not set (RANK, WORLD_SIZE, LOCKSTEP_RUN_ID):
// ranks would no longer agree on who they are.
bool is_reserved_name(const std::string& name);

}  // namespace lockstep::launch
