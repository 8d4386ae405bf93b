#include "lockstep/launch/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include "lockstep/base/nearest.h"
#include "lockstep/launch/pattern.h"

namespace lockstep::launch {

void ResourcesConfig::bind(config::Binder& binder) {
  binder.field("hosts", hosts, "own hosts, the head first");
  binder.field("hostfile", hostfile, "file of 'host slots=N' lines");
  binder.field(
      "ssh_options", ssh_options, "more options for ssh, one word each");
  binder.field("cluster", cluster, "name of a running cluster");
  binder.text(
      "launcher", launcher, "local, ssh, mpi or slurm", [](const auto& name) {
        const std::vector<std::string> accepted = {
            "local", "ssh", "mpi", "slurm"};
        if (std::ranges::find(accepted, name) == accepted.end()) {
          return Result<void>(Error(
              ErrorCode::kInvalidInput,
              fmt::format("'{}'; {}", name, suggest(name, accepted))));
        }
        return Result<void>();
      });
  binder.text(
      "cloud", cloud, "where machines are rented: aws", [](const auto& name) {
        return name == "aws" ? Result<void>()
                             : Result<void>(Error(
                                   ErrorCode::kInvalidInput,
                                   fmt::format("'{}'; accepted: aws", name)));
      });
  binder.field("region", region, "of the cloud");
  binder.field("instance_type", instance_type, "machine type");
  binder.field(
      "candidates", candidates, "further types, when this one is short");
  binder.field("cpus", cpus, "cores a node: 4 or 4+");
  binder.field("memory", memory, "GB a node: 16 or 16+");
  binder.field("accelerators", accelerators, "GPUs a node: T4:1 or T4:1+");
  binder.field("use_spot", use_spot, "true, false or auto");
  binder.field("image_id", image_id, "machine image");
  binder.field("price", price, "dollars an hour and node", config::at_least(0));
  constexpr std::pair<const char*, const char*> kMachine[] = {
      {"zones", "in order of preference; absent: any"},
      {"subnet", "one, or a list in order of preference"},
      {"security_group", "one that is there; absent: one is made"},
      {"key", "private key file; absent: one is made"},
      {"user", "who logs in; absent: the image's"},
      {"ssh_from", "ranges that may reach ssh; absent: this machine"},
      {"disk", "size of the root disk"},
      {"bid", "most dollars an hour, spot"},
      {"tags", "more tags of all that is made"},
      {"placement_group", "one that is there"},
      {"instance_profile", "role of the nodes"},
      {"idle", "without a run and an ssh session for so long: given back"},
      {"ssh_timeout", "a machine that does not answer so long is given back"},
      {"price_may_be_unknown", "start under a budget without a price"},
  };
  for (const auto& [key, meaning] : kMachine) {
    binder.raw(key, machine[key], meaning);
  }
}

void PatternConfig::bind(config::Binder& binder) {
  binder.text(
      "pattern",
      pattern,
      "regular expression with named groups, read from rank 0's log",
      [](const std::string& text) -> Result<void> {
        LOCKSTEP_TRY(Pattern::compile(text));
        return {};
      });
}

std::optional<Duration> HangConfig::limit() const {
  const auto parsed = parse_duration(after);
  return after == "auto" || !parsed ? std::nullopt : std::optional(*parsed);
}

void HangConfig::bind(config::Binder& binder) {
  binder.choice(
      "policy",
      policy,
      {"report", "restart", "stop"},
      "what follows when a rank hangs");
  binder.text(
      "after",
      after,
      "no step for so long is a hang; auto: by the rank's own pace",
      [](const std::string& text) -> Result<void> {
        const auto parsed = parse_duration(text);
        if (text == "auto" || (parsed && *parsed > Duration(0))) {
          return {};
        }
        return Error(
            ErrorCode::kInvalidInput,
            fmt::format("'{}'; accepted: auto, or a duration (90s, 5m)", text));
      });
}

void MpiConfig::bind(config::Binder& binder) {
  binder.field("options", options, "more options of mpirun");
}

void SlurmConfig::bind(config::Binder& binder) {
  binder.field("partition", partition, "of the cluster; absent: its default");
  binder.field("options", options, "more options of sbatch");
}

void OptimiseConfig::bind(config::Binder& binder) {
  binder.field("goal", goal, "cost or time");
  binder.field("period", period, "between decisions");
  binder.field("candidates", candidates, "machine types to choose from");
  binder.field("max_nodes", max_nodes, "at once, at most", config::at_least(1));
  binder.field("dry_run", dry_run, "only say what would be changed");
}

void Job::bind(config::Binder& binder) {
  binder.field("name", name, "of the run");
  binder.group("resources", resources, "machines; absent: this one");
  binder.field("num_nodes", num_nodes, "nodes", config::at_least(1));
  binder.field(
      "procs_per_node",
      procs_per_node,
      "ranks a node; absent: its GPUs, else 1",
      config::between(1, 4096));
  binder.raw("container", container, "image for the ranks, or {build: FILE}");
  binder.field("workdir", workdir, "folder the ranks start in");
  binder.field("envs", envs, "environment of the ranks");
  binder.raw("secrets", secrets, "names taken from your environment");
  binder.field("file_mounts", file_mounts, "data brought to the nodes");
  binder.field("setup", setup, "shell commands before the ranks start");
  binder.raw(
      "run", run, "a shell command, a list of arguments, or {head:, worker:}");
  binder.raw("train", train, "recipe and keys of the native trainer");
  binder.group("iterations", iterations, "how to read steps from the output");
  binder.group("epochs", epochs, "how to read epochs from the output");
  binder.field("outputs", outputs, "where results are stored");
  binder.text(
      "stop_signal",
      stop_signal,
      "asks ranks to end",
      [](const std::string& text) -> Result<void> {
        LOCKSTEP_TRY(parse_signal(text));
        return {};
      });
  binder.field(
      "grace", grace, "between stop_signal and SIGKILL", config::at_least(0));
  binder.group("hang", hang, "ranks that take no more steps");
  binder.group("optimise", optimise, "change the machines while it runs");
  binder.group("mpi", mpi, "for launcher mpi");
  binder.group("slurm", slurm, "for launcher slurm");
  binder.field("budget", budget, "most dollars", config::above(0));
  binder.field("max_duration", max_duration, "longest run", config::above(0));
}

Result<int> parse_signal(const std::string& text) {
  const std::string name = text.starts_with("SIG") ? text.substr(3) : text;
  std::vector<std::string> accepted;
  for (int number = 1; number < NSIG; ++number) {
    const char* abbreviation = ::sigabbrev_np(number);
    if (abbreviation == nullptr) {
      continue;
    }
    if (name == abbreviation || text == std::to_string(number)) {
      return number;
    }
    accepted.push_back(std::string("SIG") + abbreviation);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "'{}' is no signal; {}",
          text,
          nearest_names(text, accepted).empty()
              ? "accepted: SIGTERM, SIGINT, SIGUSR1, ..."
              : suggest(text, accepted)));
}

}  // namespace lockstep::launch
