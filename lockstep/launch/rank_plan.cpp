#include "lockstep/launch/rank_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::launch {
namespace {

constexpr std::array<std::string_view, 9> kForeignPrefixes = {
    "SLURM_",
    "SLURMD_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "TORCHELASTIC_",
    "ROLE_",
    "HYDRA_"};

// What a nested `lockstep run` must not take over from the outer one.
constexpr std::array<std::string_view, 18> kOwnNames = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCKSTEP_RUN_ID",
    "LOCKSTEP_RUN_DIR",
    "LOCKSTEP_EVENTS",
    "LOCKSTEP_COORDINATOR",
    "LOCKSTEP_KEY_FILE",
    "LOCKSTEP_GENERATION",
    "LOCKSTEP_CHECKPOINTS",
    "LOCKSTEP_PYTHON",
    "LOCKSTEP_STOP_SIGNAL",
    "MASTER_ADDR",
    "MASTER_PORT"};

bool may_be_set(std::string_view name) {
  return name == "MASTER_ADDR" || name == "MASTER_PORT";
}

}  // namespace

Result<RankPlan> plan_ranks(std::vector<PlannedNode> nodes) {
  RankPlan plan;
  if (nodes.empty()) {
    return Error(ErrorCode::kInvalidInput, "a run needs one node at least");
  }
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].procs < 1) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "node {} ({}) has {} ranks: at least 1 is needed",
              node,
              nodes[node].host,
              nodes[node].procs));
    }
    for (int local = 0; local < nodes[node].procs; ++local) {
      plan.slots.push_back(
          {static_cast<int>(plan.slots.size()), static_cast<int>(node), local});
    }
  }
  plan.nodes = std::move(nodes);
  return plan;
}

Environment without_launchers(const Environment& inherited) {
  Environment clean;
  for (const auto& [name, value] : inherited) {
    const bool foreign = std::ranges::any_of(
        kForeignPrefixes,
        [&](std::string_view prefix) { return name.starts_with(prefix); });
    const bool own = std::ranges::find(kOwnNames, name) != kOwnNames.end();
    if (!foreign && !own) {
      clean.emplace(name, value);
    }
  }
  return clean;
}

bool is_reserved_name(const std::string& name) {
  return (std::ranges::find(kOwnNames, name) != kOwnNames.end() &&
          !may_be_set(name)) ||
         name.starts_with("TORCHELASTIC_");
}

Environment rank_environment(
    const RankPlan& plan,
    const RankSlot& slot,
    const GenerationFacts& facts,
    const Environment& inherited,
    const Environment& wanted) {
  const PlannedNode& node = plan.nodes.at(static_cast<size_t>(slot.node));
  Environment result = without_launchers(inherited);
  const auto set = [&](const char* name, auto value) {
    result[name] = fmt::to_string(value);
  };
  set("RANK", slot.rank);
  set("WORLD_SIZE", plan.world_size());
  set("LOCAL_RANK", slot.local_rank);
  set("LOCAL_WORLD_SIZE", node.procs);
  set("NODE_RANK", slot.node);
  set("GROUP_RANK", slot.node);
  set("MASTER_ADDR", facts.master_address);
  set("MASTER_PORT", facts.master_port);
  if (!result.contains("OMP_NUM_THREADS")) {
    set("OMP_NUM_THREADS", std::max(1, node.cores / node.procs));
  }
  set("TORCHELASTIC_RUN_ID", facts.run_id);
  set("TORCHELASTIC_RESTART_COUNT", facts.generation);
  set("TORCHELASTIC_MAX_RESTARTS", facts.max_restarts);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("GLOO_SOCKET_IFNAME", node.interface);
  set("NCCL_SOCKET_IFNAME", node.interface);
  set("LOCKSTEP_RUN_ID", facts.run_id);
  set("LOCKSTEP_RUN_DIR", facts.run_directory);
  set("LOCKSTEP_EVENTS",
      fmt::format(
          "{}/{}.jsonl",
          facts.events_directory.empty() ? facts.run_directory + "/ranks"
                                         : facts.events_directory,
          slot.rank));
  set("LOCKSTEP_COORDINATOR", facts.coordinator);
  set("LOCKSTEP_KEY_FILE", facts.key_file);
  set("LOCKSTEP_GENERATION", facts.generation);
  set("LOCKSTEP_CHECKPOINTS", facts.run_directory + "/checkpoints");
  for (const auto& [name, value] : wanted) {
    result[name] = value;
  }
  return result;
}

}  // namespace lockstep::launch
