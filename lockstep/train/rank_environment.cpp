#include "lockstep/train/rank_environment.h"

#include <fmt/format.h>

#include <charconv>

namespace lockstep::train {
namespace {

using Environment = std::map<std::string, std::string>;

std::string text(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Result<int>
number(const Environment& environment, const std::string& name, int fallback) {
  const std::string value = text(environment, name);
  if (value.empty()) {
    return fallback;
  }
  int parsed = 0;
  const auto [end, failure] =
      std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (failure != std::errc() || end != value.data() + value.size() ||
      parsed < 0) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "environment {}='{}' must be a whole number from 0", name, value));
  }
  return parsed;
}

// The names under which each launcher tells the same five numbers.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
};

constexpr Names kMpi = {
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK"};
constexpr Names kSlurm = {
    "srun",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NODEID"};
constexpr Names kTorch = {
    "plain",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK"};

}  // namespace

Result<RankEnvironment> read_rank_environment(const Environment& environment) {
  RankEnvironment result;
  const bool from_lockstep = environment.contains("LOCKSTEP_RUN_ID");
  const Names* names = nullptr;
  // A launcher inside another one wins: lockstep and torchrun set RANK even
  // where Slurm or MPI started them.
  if (environment.contains("RANK")) {
    names = &kTorch;
  } else if (environment.contains(kMpi.rank)) {
    names = &kMpi;
  } else if (
      environment.contains(kSlurm.rank) &&
      environment.contains("SLURM_STEP_ID")) {
    names = &kSlurm;
  }
  if (names != nullptr) {
    result.launcher = names->launcher;
    if (names == &kTorch && from_lockstep) {
      result.launcher = "lockstep";
    } else if (
        names == &kTorch && environment.contains("TORCHELASTIC_RUN_ID")) {
      result.launcher = "torchrun";
    }
    if (!environment.contains(names->world_size)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "environment has {} but not {}", names->rank, names->world_size));
    }
    LOCKSTEP_ASSIGN(result.rank, number(environment, names->rank, 0));
    LOCKSTEP_ASSIGN(
        result.world_size, number(environment, names->world_size, 1));
    LOCKSTEP_ASSIGN(
        result.local_rank, number(environment, names->local_rank, 0));
    LOCKSTEP_ASSIGN(
        result.local_world_size,
        number(environment, names->local_world_size, result.world_size));
    LOCKSTEP_ASSIGN(result.node_rank, number(environment, names->node_rank, 0));
    if (result.world_size < 1 || result.rank >= result.world_size) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "environment {}={} does not fit {}={}",
              names->rank,
              result.rank,
              names->world_size,
              result.world_size));
    }
  }
  result.master_host = text(environment, "MASTER_ADDR");
  LOCKSTEP_ASSIGN(const int port, number(environment, "MASTER_PORT", 0));
  if (port > 65535) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("environment MASTER_PORT={} is not a port", port));
  }
  result.master_port = static_cast<uint16_t>(port);
  result.agent_store =
      text(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  LOCKSTEP_ASSIGN(
      const int restarts, number(environment, "TORCHELASTIC_RESTART_COUNT", 0));
  LOCKSTEP_ASSIGN(
      result.generation, number(environment, "LOCKSTEP_GENERATION", restarts));
  result.run_id = text(environment, "LOCKSTEP_RUN_ID");
  if (result.run_id.empty()) {
    result.run_id = text(environment, "TORCHELASTIC_RUN_ID");
  }
  result.run_dir = text(environment, "LOCKSTEP_RUN_DIR");
  result.events = text(environment, "LOCKSTEP_EVENTS");
  result.coordinator = text(environment, "LOCKSTEP_COORDINATOR");
  result.key_file = text(environment, "LOCKSTEP_KEY_FILE");
  result.checkpoints = text(environment, "LOCKSTEP_CHECKPOINTS");
  const bool needs_master = result.world_size > 1 &&
                            result.launcher != "mpirun" &&
                            result.coordinator.empty();
  if (needs_master && (result.master_host.empty() || port == 0)) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "WORLD_SIZE={} but MASTER_ADDR or MASTER_PORT is not set",
                   result.world_size))
        .with_fix("start the ranks with lockstep, torchrun or mpirun");
  }
  return result;
}

}  // namespace lockstep::train
