#include "lockstep/commands/run_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "lockstep/cloud/catalogue.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;

template <class T>
Result<std::optional<T>> parsed(
    const std::optional<std::string>& text,
    const char* option,
    Result<T> (*parse)(std::string_view)) {
  if (!text) {
    return std::optional<T>();
  }
  LOCKSTEP_ASSIGN(T value, parse(*text).with_context(option));
  return std::optional<T>(value);
}

// As in a job file.
template <class T>
Result<void> expect_above_zero(
    const std::optional<T>& limit,
    const char* option) {
  if (limit && *limit <= T{}) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{} must be above 0: nothing would run", option));
  }
  return {};
}

// What belongs to machines of a cloud needs one.
Result<void> check_rented(const RunOptions& options, const Job& job) {
  const auto& resources = job.resources;
  const bool is_rented = resources.is_rented();
  const auto refuse = [](const std::string& words, const std::string& fix) {
    return Error(ErrorCode::kInvalidInput, words).with_fix(fix);
  };
  if (is_rented && !resources.cluster.empty()) {
    return refuse(
        "a job has either resources.cloud or a cluster",
        "leave out resources.cloud to run on a cluster that is up");
  }
  const bool has_hosts = !options.hosts.empty() || !options.hostfile.empty() ||
                         !resources.hosts.empty() ||
                         !resources.hostfile.empty();
  if ((is_rented || !resources.cluster.empty()) && has_hosts) {
    return refuse(
        "machines of a cloud and hosts exclude each other",
        "leave out hosts, or resources.cloud and cluster");
  }
  LOCKSTEP_ASSIGN(
      const cloud::MachineWish wish,
      cloud::parse_wish(
          resources.cpus, resources.memory, resources.accelerators));
  const bool is_wished = !wish.is_empty();
  if (is_rented && resources.instance_type.empty() && !is_wished &&
      resources.candidates.empty() && job.optimise.candidates.empty()) {
    return refuse(
        "resources.cloud: no machine type is named",
        "resources: {cloud: aws, instance_type: c5.xlarge}, or cpus: 4+, "
        "memory: 16+, accelerators: T4:1");
  }
  if (is_wished && !resources.instance_type.empty()) {
    return refuse(
        "resources: a type by name and one by cpus, memory or accelerators "
        "exclude each other",
        "leave out instance_type, or the others");
  }
  if (is_wished && !job.optimise.candidates.empty()) {
    return refuse(
        "resources: cpus, memory and accelerators do not go with optimise",
        "name the types: optimise.candidates");
  }
  if (!is_rented && options.keep) {
    return refuse(
        "--keep is for machines that are rented for the run",
        "resources: {cloud: aws, instance_type: c5.xlarge}");
  }
  std::string stray;
  const auto look = [&](bool is_set, const std::string& key) {
    if (is_set && stray.empty()) {
      stray = key;
    }
  };
  look(!resources.region.empty(), "region");
  look(!resources.instance_type.empty(), "instance_type");
  look(!resources.candidates.empty(), "candidates");
  look(!resources.cpus.empty(), "cpus");
  look(!resources.memory.empty(), "memory");
  look(!resources.accelerators.empty(), "accelerators");
  look(!resources.use_spot.empty(), "use_spot");
  look(!resources.image_id.empty(), "image_id");
  for (const auto& [key, value] : resources.machine) {
    look(!value.is_null(), key);
  }
  if (!is_rented && !stray.empty()) {
    return refuse(
        fmt::format("resources.{} needs resources.cloud", stray),
        "resources: {cloud: aws, ...}");
  }
  return {};
}

Result<Job> load(const RunOptions& options, const Context& context) {
  const auto environment = os::environment();
  if (context.has_program) {
    return launch::program_job(context.program, options.words, environment);
  }
  if (options.words.empty()) {
    return Error(ErrorCode::kInvalidInput, "nothing to run")
        .with_fix(
            "'lockstep run JOB.yaml' or 'lockstep run --procs 2 -- PROGRAM'");
  }
  const std::string& file = options.words.front();
  std::error_code ignored;
  if (!fs::exists(file, ignored) && !file.ends_with(".yaml") &&
      !file.ends_with(".yml")) {
    return Error(ErrorCode::kNotFound, fmt::format("no job file '{}'", file))
        .with_fix(
            fmt::format(
                "to run a program: lockstep run -- {}",
                fmt::join(options.words, " ")));
  }
  auto job = launch::load_job(
      file, {options.words.begin() + 1, options.words.end()}, environment);
  if (!job && !file.ends_with(".yaml") && !file.ends_with(".yml")) {
    return std::move(job.error())
        .with_fix(
            fmt::format(
                "to run a program: lockstep run -- {}",
                fmt::join(options.words, " ")));
  }
  return job;
}

// One that is up takes the place of what the file would rent; hosts are named
// as what they are, a contradiction.
void use_cluster(
    launch::ResourcesConfig& resources,
    const std::string& cluster) {
  launch::ResourcesConfig there;
  there.cluster = cluster;
  there.hosts = std::move(resources.hosts);
  there.hostfile = std::move(resources.hostfile);
  there.ssh_options = std::move(resources.ssh_options);
  there.launcher = std::move(resources.launcher);
  there.price = resources.price;
  resources = std::move(there);
}

Result<void> apply_options(Job& job, const RunOptions& options) {
  if (options.procs) {
    job.procs_per_node = *options.procs;
  }
  if (!options.name.empty()) {
    job.name = options.name;
  }
  if (!options.cluster.empty()) {
    use_cluster(job.resources, options.cluster);
  }
  if (!options.setup.empty()) {
    job.setup = options.setup;
  }
  if (!options.container.empty()) {
    job.container =
        config::Node::scalar(options.container, {"--container", 0}, true);
  }
  if (!options.workdir.empty()) {
    job.workdir = fs::absolute(options.workdir).lexically_normal().string();
  }
  for (const std::string& pair : options.envs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("--env {}: write NAME=VALUE", pair));
    }
    const std::string name = pair.substr(0, equals);
    if (launch::is_reserved_name(name)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "--env {}: lockstep sets this itself for each rank", name));
    }
    if (job.secret_values.contains(name)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "--env {0}: {0} stands in 'secrets': name it once", name));
    }
    job.envs[name] = pair.substr(equals + 1);
  }
  LOCKSTEP_ASSIGN(
      const auto grace, parsed(options.grace, "--grace", parse_duration));
  job.grace = grace.value_or(job.grace);
  LOCKSTEP_ASSIGN(
      const auto budget, parsed(options.budget, "--budget", parse_money));
  LOCKSTEP_TRY(expect_above_zero(budget, "--budget"));
  job.budget = budget ? budget : job.budget;
  LOCKSTEP_ASSIGN(
      const auto longest,
      parsed(options.max_duration, "--max-duration", parse_duration));
  LOCKSTEP_TRY(expect_above_zero(longest, "--max-duration"));
  job.max_duration = longest ? longest : job.max_duration;
  std::error_code ignored;
  if (!fs::is_directory(job.workdir, ignored)) {
    return Error(
        ErrorCode::kNotFound,
        fmt::format("workdir: {} is not a folder", job.workdir));
  }
  return {};
}

}  // namespace

Result<ResolvedJob> resolve_job(
    const RunOptions& options,
    const Context& context,
    const Settings& settings) {
  ResolvedJob priced;
  LOCKSTEP_ASSIGN(priced.job, load(options, context));
  Job& job = priced.job;
  LOCKSTEP_TRY(apply_options(job, options));
  LOCKSTEP_TRY(check_rented(options, job));
  LOCKSTEP_TRY(check_outputs(job));
  LOCKSTEP_ASSIGN(priced.price, parsed(options.price, "--price", parse_money));
  if (priced.price) {
    priced.source = "--price";
  } else if (job.resources.price) {
    priced.price = job.resources.price;
    priced.source = "job file";
  } else if (settings.price) {
    priced.price = settings.price;
    priced.source = "user file";
  }
  // The cloud tells the price of what is rented.
  const bool is_own =
      !job.resources.is_rented() && job.resources.cluster.empty();
  if (job.budget && !priced.price && is_own) {
    return Error(
               ErrorCode::kInvalidInput,
               "a budget needs the price of this machine")
        .with_fix("give --price 0.40 (dollars an hour) or resources.price");
  }
  LOCKSTEP_ASSIGN(
      priced.timeout, parsed(options.timeout, "--timeout", parse_duration));
  LOCKSTEP_TRY(expect_above_zero(priced.timeout, "--timeout"));
  if (priced.price && *priced.price < Money()) {
    return Error(ErrorCode::kInvalidInput, "--price must be at least 0");
  }
  LOCKSTEP_ASSIGN(priced.ports, parse_port_range(options.ports));
  return priced;
}

void add_run_options(CLI::App& verb, RunOptions& options, Context& context) {
  RunOptions& o = options;
  verb.add_option("job", o.words, "job file, then key=value to change it")
      ->type_name("JOB.yaml key=value");
  verb.add_option(
          "--procs,--nproc-per-node,--nproc_per_node",
          o.procs,
          "ranks a node; default: its GPUs, else 1")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  verb.add_option("--env", o.envs, "variable for the ranks")
      ->type_name("K=V")
      ->allow_extra_args(false);
  verb.add_option("--workdir", o.workdir, "folder the ranks start in")
      ->type_name("DIR");
  verb.add_option(
          "--container", o.container, "image for the ranks: docker or podman")
      ->type_name("I");
  verb.add_option("--setup", o.setup, "shell command before the ranks start")
      ->type_name("CMD");
  verb.add_option("--timeout", o.timeout, "end it after this; exit code 124")
      ->type_name("D");
  verb.add_option("--retries", o.retries, "restarts after a failure")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  verb.add_option("--budget", o.budget, "most dollars; exit code 4")
      ->type_name("USD");
  verb.add_option("--max-duration", o.max_duration, "longest run; exit code 4")
      ->type_name("D");
  verb.add_option("--grace", o.grace, "from the stop signal to SIGKILL")
      ->type_name("D");
  verb.add_option("--price", o.price, "dollars an hour and node")
      ->type_name("USD");
  verb.add_option("--name", o.name, "of the run")->type_name("NAME");
  verb.add_option("--ranks", o.ranks, "whose output is shown: 0 or all")
      ->check(CLI::IsMember({"0", "all"}))
      ->type_name("R");
  add_runs_dir(verb, context);
  verb.add_flag("--dry-run", o.dry_run, "show job, ranks and cost, and stop");
  verb.add_flag("-y,--yes", o.yes, "do not ask");
  verb.add_flag(
      "--detach", o.detach, "leave it running; 'lockstep attach' shows it");
  const std::string many = "Other machines";
  verb.add_option("--hosts,-H", o.hosts, "hosts, the head first; a:4 has slots")
      ->allow_extra_args(false)
      ->type_name("a,b")
      ->group(many);
  verb.add_option("--hostfile", o.hostfile, "'host slots=N' lines")
      ->type_name("F")
      ->group(many);
  verb.add_option("--nodes,--nnodes", o.nodes, "of the hosts; default: all")
      ->check(CLI::Range(1, 100000))
      ->type_name("N")
      ->group(many);
  verb.add_option("--ports", o.ports, "that are open between the hosts")
      ->type_name("A-B")
      ->group(many);
  verb.add_option("--launcher", o.launcher, "local, ssh, mpi or slurm")
      ->check(CLI::IsMember({"local", "ssh", "mpi", "slurm"}))
      ->type_name("L")
      ->group(many);
  verb.add_option("--cluster", o.cluster, "a cluster that is up")
      ->type_name("C")
      ->group(many);
  verb.add_option("--keep", o.keep, "keep rented machines so long afterwards")
      ->type_name("D")
      ->group(many);
}

}  // namespace lockstep::commands
