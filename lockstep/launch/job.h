#pragma once

// The job file as typed values: what to run, on what, for how long and at what
// price. Every key is parsed and checked; one whose feature this version does
// not have is refused by name before anything starts, never ignored.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/config/binder.h"
#include "lockstep/config/node.h"
#include "lockstep/launch/job_sections.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

struct Job {
  std::string name;
  ResourcesConfig resources;
  std::optional<int> num_nodes;       // none: all hosts
  std::optional<int> procs_per_node;  // none: by GPU, else 1
  config::Node container;
  std::string workdir;
  // A dotted name is of one host: "n1.OMP_NUM_THREADS", as `envs: {n1: {...}}`
  // gives it.
  std::map<std::string, std::string> envs;
  config::Node secrets;
  std::map<std::string, std::string> file_mounts;
  std::string setup;
  config::Node run;
  config::Node train;
  PatternConfig iterations, epochs;
  std::string outputs;
  std::string stop_signal = "SIGTERM";
  Duration grace = std::chrono::seconds(60);
  HangConfig hang;
  OptimiseConfig optimise;
  MpiConfig mpi;
  SlurmConfig slurm;
  std::optional<Money> budget;
  std::optional<Duration> max_duration;
  void bind(config::Binder& binder);

  // Filled by load: never part of what is printed.
  Environment secret_values;
};

// Reads a file and lays `overrides` (key=value) over it. A key that is not the
// job's own goes to the native trainer when the job has a `train` section, so
// that `optim.lr=1e-3` needs no prefix. Secrets come from `environment`.
Result<Job> load_job(
    const std::string& path,
    const std::vector<std::string>& overrides,
    const Environment& environment);
// A job of one program, as from `lockstep run -- PROGRAM ARGS`.
Result<Job> program_job(
    const std::vector<std::string>& argv,
    const std::vector<std::string>& overrides,
    const Environment& environment);

// The text of a job, as job_text gives it; `source` names it in errors.
Result<Job> parse_job(
    const std::string& text,
    const std::string& source,
    const Environment& secrets);

// The variables that all nodes get, and those of `host` alone.
Environment common_envs(const Job& job);
Environment host_envs(const Job& job, const std::string& host);
// An error for values of a host that is neither among `hosts` nor among the
// job's own.
Result<void> check_host_envs(
    const Job& job,
    const std::vector<std::string>& hosts);

// The argument vector of a rank. `trainer` is the path of lockstep-train;
// `generation` above 0 makes it go on from the last checkpoint. With `run:
// {head: ..., worker: ...}` rank 0 runs the head's program, all others the
// worker's. In a container a shell command goes through sh, and the trainer is
// the image's own.
Result<std::vector<std::string>> job_command(
    const Job& job,
    const os::Path& trainer,
    int generation,
    int rank = 0);

// What stands behind key= there for a scalar or a list of the job's `train`.
std::string trainer_value(const config::Node& node);

// The keys that differ from their defaults, as YAML that load_job takes back;
// values of secrets are never in it.
std::string job_yaml(const Job& job);
// The same with what job_yaml redacts in other keys: for a head, never for
// files.
std::string job_text(const Job& job);

// What must not be shown, the longest first: values of secrets, and each line
// of one with several. Very short ones are left out: they would riddle every
// text.
std::vector<std::string> secret_texts(const Job& job);
// `text` with each of them replaced by "***".
std::string redact(const Job& job, std::string text);
// The same for texts that secret_texts gave, longest first.
std::string mask(const std::vector<std::string>& hidden, std::string text);

// "SIGTERM", "TERM" or "15".
Result<int> parse_signal(const std::string& text);

// The arguments of the native trainer that a `train` section stands for:
// nested maps become dotted keys, `data: {name: x}` the choice `data=x`.
Result<std::vector<std::string>> trainer_arguments(const config::Node& train);
// Groups of the trainer: `data=cifar10` chooses one, and `data.workers=2` sets
// a key in it, so inside a tree the choice is `data.name`.
bool is_trainer_group(std::string_view key);

}  // namespace lockstep::launch
