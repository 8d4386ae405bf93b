#pragma once

// The options of `lockstep run` and the job that they and the job file make
// together.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/commands/command.h"
#include "lockstep/commands/port_range.h"
#include "lockstep/launch/job.h"

namespace lockstep::commands {

struct RunOptions {
  std::vector<std::string> words;  // JOB.yaml key=value ...
  std::vector<std::string> hosts;
  std::string hostfile, cluster, launcher, container;
  std::optional<int> nodes, procs;
  std::vector<std::string> envs;
  std::string workdir, setup, name, ranks = "0";
  // None was given: an empty one is refused, not taken for no limit.
  std::optional<std::string> timeout, budget, max_duration, price, grace, keep,
      ports;
  int retries = 0;
  bool detach = false, dry_run = false, yes = false;
};
void add_run_options(CLI::App& verb, RunOptions& options, Context& context);

// The job with its price and where that is from.
struct ResolvedJob {
  launch::Job job;
  std::optional<Money> price;  // an hour and node
  std::string source;
  std::optional<Duration> timeout;
  PortRange ports;
};

// Refuses what this version does not have before anything is read.
Result<ResolvedJob> resolve_job(
    const RunOptions& options,
    const Context& context,
    const Settings& settings);

}  // namespace lockstep::commands
