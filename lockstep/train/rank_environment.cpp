#include "lockstep/train/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

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

// A variable that must be there and hold a number; empty is a script's mistake.
Result<int> required(const Environment& environment, const std::string& name) {
  if (environment.contains(name) && text(environment, name).empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("environment {} is empty; a whole number from 0", name));
  }
  return number(environment, name, 0);
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
    "SLURM_NTASKS_PER_NODE",  // only where it was asked for
    "SLURM_NODEID"};
constexpr Names kTorch = {
    "plain",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK"};

// "4(x2),3" is 4, 4 and 3: the tasks of a Slurm step, node by node.
std::optional<int> tasks_of_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    int tasks = 0;
    int nodes = 1;
    const auto* end = item.data() + item.size();
    auto [at, failure] = std::from_chars(item.data(), end, tasks);
    if (failure != std::errc()) {
      return std::nullopt;
    }
    if (std::string_view(at, end).starts_with("(x")) {
      std::from_chars(at + 2, end, nodes);
    }
    if (node < nodes) {
      return tasks;
    }
    node -= nodes;
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return std::nullopt;
}

// "gpu[03-07,9]-ib,login" is gpu03-ib: the first of a Slurm node list.
std::string first_node(std::string_view list) {
  const size_t open = list.find_first_of("[,");
  if (open == std::string_view::npos || list[open] == ',') {
    return std::string(list.substr(0, open));
  }
  const size_t close = list.find(']', open);
  if (close == std::string_view::npos) {
    return "";
  }
  const auto number = list.substr(open + 1);
  const auto behind = list.substr(close + 1);
  return std::string(list.substr(0, open)) +
         std::string(number.substr(0, number.find_first_of("-,]"))) +
         std::string(behind.substr(0, behind.find(',')));
}

// What srun does not say outright: how many ranks this node has, and where
// rank 0 is to be found. The port is the same for all ranks of a step and
// another for each step of a cluster's recent jobs.
Result<void> complete_from_slurm(
    const Environment& environment,
    RankEnvironment& result) {
  constexpr int kFirstPort = 20000;
  constexpr int kPorts = 10000;
  const auto tasks = tasks_of_node(
      text(environment, "SLURM_STEP_TASKS_PER_NODE"), result.node_rank);
  if (tasks) {
    result.local_world_size = *tasks;
  }
  if (!result.master_host.empty() || result.master_port != 0) {
    return {};  // the script has chosen
  }
  LOCKSTEP_ASSIGN(const int job, number(environment, "SLURM_JOB_ID", 0));
  LOCKSTEP_ASSIGN(const int step, number(environment, "SLURM_STEP_ID", 0));
  result.run_id = fmt::format("slurm-{}.{}", job, step);
  result.master_host =
      result.local_world_size == result.world_size
          ? "127.0.0.1"
          : first_node(text(environment, "SLURM_STEP_NODELIST"));
  if (!result.master_host.empty()) {
    result.master_port =
        static_cast<uint16_t>(kFirstPort + (job % kPorts * 7 + step) % kPorts);
  }
  return {};
}

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
  if (names == nullptr && !text(environment, "WORLD_SIZE").empty() &&
      text(environment, "WORLD_SIZE") != "1") {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "environment has WORLD_SIZE={} but not RANK",
                   text(environment, "WORLD_SIZE")))
        .with_fix(
            "give each rank its RANK, or unset WORLD_SIZE to train alone");
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
    LOCKSTEP_ASSIGN(result.rank, required(environment, names->rank));
    LOCKSTEP_ASSIGN(
        result.world_size, required(environment, names->world_size));
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
  if (names == &kSlurm) {
    LOCKSTEP_TRY(complete_from_slurm(environment, result));
  }
  result.run_dir = text(environment, "LOCKSTEP_RUN_DIR");
  result.events = text(environment, "LOCKSTEP_EVENTS");
  result.coordinator = text(environment, "LOCKSTEP_COORDINATOR");
  result.key_file = text(environment, "LOCKSTEP_KEY_FILE");
  result.checkpoints = text(environment, "LOCKSTEP_CHECKPOINTS");
  const bool needs_master = result.world_size > 1 &&
                            result.launcher != "mpirun" &&
                            result.coordinator.empty();
  if (needs_master && (result.master_host.empty() || result.master_port == 0)) {
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
