#pragma once

// Who started this rank and what it told us. Understands lockstep, torchrun,
// mpirun (Open MPI), srun, a bare RANK/WORLD_SIZE, and nothing at all (alone).
// Pure: the environment is passed in.

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/base/result.h"

namespace lockstep::train {

struct RankEnvironment {
  std::string launcher = "alone";  // lockstep torchrun mpirun srun plain alone
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  std::string master_host;
  uint16_t master_port = 0;
  bool agent_store = false;  // torchrun serves a TCPStore on master_port
  int generation = 0;        // restarts so far
  // Given by lockstep; empty elsewhere.
  std::string run_id;
  std::string run_dir;
  std::string events;
  std::string coordinator;
  std::string key_file;
  std::string checkpoints;
};

// kInvalidInput names the variable, its value and what was expected.
Result<RankEnvironment> read_rank_environment(
    const std::map<std::string, std::string>& environment);

}  // namespace lockstep::train
