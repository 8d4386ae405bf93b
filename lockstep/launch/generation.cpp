#include "lockstep/launch/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/launch/container.h"
#include "lockstep/launch/python_module.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

// What the user wants set, the node's own last.
Environment wanted_by(const Job& job, const NodePlace& place) {
  Environment wanted = place.envs;
  wanted.insert(job.envs.begin(), job.envs.end());
  wanted.insert(job.secret_values.begin(), job.secret_values.end());
  return wanted;
}

GenerationFacts facts_on(
    const Generation& generation,
    const NodePlace& place,
    const StartFacts& facts) {
  GenerationFacts result;
  result.run_id = facts.run_id;
  result.run_directory = place.run_directory.string();
  result.events_directory = (place.folder / "ranks").string();
  result.master_address =
      place.master_address.empty() ? place.head_address : place.master_address;
  result.master_port = facts.master_port;
  os::Address coordinator;
  coordinator.host = place.head_address;
  coordinator.port = static_cast<uint16_t>(facts.coordinator_port);
  result.coordinator = coordinator.to_string();
  result.key_file = place.key_file.string();
  result.generation = generation.number;
  result.max_restarts = facts.max_restarts;
  return result;
}

}  // namespace

Generation whole_generation(
    RankPlan plan,
    std::vector<NodePlace> places,
    std::vector<size_t> members) {
  Generation whole;
  if (members.empty()) {
    for (const RankSlot& slot : plan.slots) {
      members.push_back(static_cast<size_t>(slot.node));
    }
  }
  whole.plan = std::move(plan);
  whole.places = std::move(places);
  whole.members = std::move(members);
  return whole;
}

Result<Generation> plan_generation(
    const Generation& whole,
    const std::vector<size_t>& present,
    int number) {
  Generation next;
  next.number = number;
  std::vector<PlannedNode> nodes;
  for (size_t node = 0; node < whole.plan.nodes.size(); ++node) {
    std::vector<size_t> kept;
    for (const RankSlot& slot : whole.plan.slots) {
      const size_t member = whole.members.at(static_cast<size_t>(slot.rank));
      if (slot.node == static_cast<int>(node) &&
          std::ranges::find(present, member) != present.end()) {
        kept.push_back(member);
      }
    }
    if (kept.empty() && node == 0) {
      return Error(
          ErrorCode::kUnavailable,
          fmt::format(
              "node {}, which holds the run directory, is not there",
              whole.plan.nodes[0].host));
    }
    if (kept.empty()) {
      continue;
    }
    nodes.push_back(whole.plan.nodes[node]);
    nodes.back().procs = static_cast<int>(kept.size());
    next.places.push_back(whole.places.at(node));
    std::ranges::move(kept, std::back_inserter(next.members));
  }
  LOCKSTEP_ASSIGN(next.plan, plan_ranks(std::move(nodes)));
  return next;
}

Result<std::map<size_t, StartRequest>> make_starts(
    const Job& job,
    const Generation& generation,
    const StartFacts& facts) {
  std::map<size_t, StartRequest> starts;
  LOCKSTEP_ASSIGN(const auto container, job_container(job));
  // One form for ranks, whichever the job file has.
  LOCKSTEP_ASSIGN(const int stop_signal, parse_signal(job.stop_signal));
  const std::string stop_name =
      std::string("SIG") + ::sigabbrev_np(stop_signal);
  for (const RankSlot& slot : generation.plan.slots) {
    const NodePlace& place =
        generation.places.at(static_cast<size_t>(slot.node));
    RankCommand command;
    command.rank = slot.rank;
    LOCKSTEP_ASSIGN(
        command.argv,
        job_command(job, place.trainer, generation.number, slot.rank));
    command.environment = rank_environment(
        generation.plan,
        slot,
        facts_on(generation, place, facts),
        place.inherited,
        wanted_by(job, place));
    command.environment["LOCKSTEP_STOP_SIGNAL"] = stop_name;
    add_python_folder(place.folder / "python", command.environment);
    command.directory = place.workdir;
    const os::Path ranks = place.folder / "ranks";
    command.log = ranks / fmt::format("{}.log", slot.rank);
    command.events = ranks / fmt::format("{}.jsonl", slot.rank);
    command.show = slot.rank == 0 || facts.show_all;
    if (slot.rank == 0) {
      command.iteration_pattern = job.iterations.pattern;
      command.epoch_pattern = job.epochs.pattern;
    }
    if (container) {
      std::vector<os::Path> mounts = {place.run_directory, place.folder};
      for (const auto& [name, source] : job.file_mounts) {
        mounts.push_back((place.workdir / name).lexically_normal());
      }
      contain(
          command,
          *container,
          facts.run_id,
          generation.number,
          place.folder,
          std::move(mounts),
          wanted_by(job, place));
    }
    StartRequest& start =
        starts[generation.members.at(static_cast<size_t>(slot.rank))];
    start.generation = generation.number;
    start.stop_signal = facts.stop_signal;
    start.orphan_grace = facts.orphan_grace;
    start.commands.push_back(std::move(command));
  }
  return starts;
}

StartRequest
make_setup(const Job& job, const NodePlace& place, const StartFacts& facts) {
  RankCommand command;
  command.rank = kSetupRank;
  command.argv = {"bash", "-c", job.setup};
  command.environment = without_launchers(place.inherited);
  for (const auto& [name, value] : wanted_by(job, place)) {
    command.environment[name] = value;
  }
  command.directory = place.workdir;
  command.log = place.folder / "ranks" / "setup.log";
  command.show = true;
  StartRequest start;
  start.stop_signal = facts.stop_signal;
  start.orphan_grace = facts.orphan_grace;
  start.commands.push_back(std::move(command));
  return start;
}

}  // namespace lockstep::launch
