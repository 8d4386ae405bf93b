#pragma once

// The nested sections of a job file, each with its keys, checks and help text.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/config/binder.h"
#include "lockstep/config/node.h"

namespace lockstep::launch {

struct ResourcesConfig {
  std::vector<std::string> hosts;
  std::vector<std::string> ssh_options;  // words: "-o", "Port=2222"
  std::string hostfile, cluster, launcher, cloud, region, instance_type;
  std::vector<std::string> candidates;
  std::string cpus, memory, accelerators, use_spot, image_id;
  std::optional<Money> price;  // dollars an hour and node
  // What else a cluster file has, for `cloud`: zones, subnet, ssh_from, ...;
  // the fleet reads it.
  std::map<std::string, config::Node> machine;
  bool is_rented() const { return !cloud.empty(); }
  void bind(config::Binder& binder);
};

struct PatternConfig {
  std::string pattern;
  void bind(config::Binder& binder);
};

struct HangConfig {
  std::string policy = "report";  // or restart, stop
  std::string after = "auto";     // or a duration
  std::optional<Duration> limit() const;
  void bind(config::Binder& binder);
};

// For `launcher: mpi`.
struct MpiConfig {
  std::vector<std::string> options;  // of mpirun
  void bind(config::Binder& binder);
};

// For `launcher: slurm`.
struct SlurmConfig {
  std::string partition;
  std::vector<std::string> options;  // of sbatch
  void bind(config::Binder& binder);
};

struct OptimiseConfig {
  std::string goal;
  std::optional<Duration> period;
  std::vector<std::string> candidates;
  int max_nodes = 16;    // at once
  bool dry_run = false;  // only recommends
  void bind(config::Binder& binder);
};

}  // namespace lockstep::launch
