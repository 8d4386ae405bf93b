#pragma once

// A generation: which ranks there are, where each runs, and the requests that
// start them. A later generation has the nodes that are left or came back, so
// its world may be smaller or larger than the last. Pure.

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// Where one node keeps what its ranks need, as paths there, and how it reaches
// the head. Interfaces and cores of a node are in the plan.
struct NodePlace {
  os::Path workdir;
  os::Path trainer;        // empty when the job is another program
  os::Path run_directory;  // LOCKSTEP_RUN_DIR: runs/<id> on the head
  os::Path folder;         // ranks/R.log and ranks/R.jsonl are made below it
  os::Path key_file;       // LOCKSTEP_KEY_FILE: <folder>/.key of an agent
  Environment inherited;   // PATH, HOME, ... of that node
  Environment envs;        // of this node alone, over the job's
  // The host of LOCKSTEP_COORDINATOR, and MASTER_ADDR where none is given. The
  // coordinator listens on 0.0.0.0 when there is more than one node.
  std::string head_address;
  // Where rank 0 runs when that is not the head (mpi).
  std::string master_address;
};

struct Generation {
  int number = 0;
  RankPlan plan;
  std::vector<NodePlace> places;  // by node of the plan
  std::vector<size_t> members;    // by rank: its index in the NodeGroup
};

// The whole run: `members` may be empty, then a node of the plan has its own
// index in the group.
Generation whole_generation(
    RankPlan plan,
    std::vector<NodePlace> places,
    std::vector<size_t> members);

// `whole` without the ranks of members that are not `present`; ranks and nodes
// are numbered anew, in the same order. kUnavailable without the first node:
// the run directory is there.
Result<Generation> plan_generation(
    const Generation& whole,
    const std::vector<size_t>& present,
    int number);

struct StartFacts {
  std::string run_id;
  int master_port = 0;
  int coordinator_port = 0;
  int max_restarts = 0;
  bool show_all = false;  // output of every rank, not only of the first
  int stop_signal = 15;
  Duration orphan_grace{};
};

// What each member of the group starts, by its index there.
Result<std::map<size_t, StartRequest>> make_starts(
    const Job& job,
    const Generation& generation,
    const StartFacts& facts);

// The job's `setup`, as a command of rank kSetupRank.
StartRequest
make_setup(const Job& job, const NodePlace& place, const StartFacts& facts);

}  // namespace lockstep::launch
