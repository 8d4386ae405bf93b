#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "lockstep/commands/command.h"
#include "lockstep/commands/mounts.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_optimised.h"
#include "lockstep/commands/run_options.h"

namespace lockstep::commands {
namespace {

Error invalid(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// The job's resources with their places, which its values no longer have.
config::Node placed_resources(const RunOptions& options, bool has_program) {
  config::Node tree;
  for (size_t i = 0; i < options.words.size(); ++i) {
    const std::string& word = options.words[i];
    const bool is_file = i == 0 && !has_program;
    std::error_code ignored;
    if (is_file && !std::filesystem::is_regular_file(word, ignored)) {
      continue;  // a pipe can be read only once
    }
    const auto layer =
        is_file ? config::load_yaml(word) : config::parse_override(word);
    if (layer) {
      tree = config::merge(std::move(tree), *layer);
    }
  }
  const config::Node* resources = tree.find("resources");
  return resources == nullptr ? config::Node() : *resources;
}

Result<std::vector<launch::HostSlots>> hosts_of_job(
    const launch::ResourcesConfig& resources,
    const config::Node& placed) {
  const auto place_of = [&](const char* key) {
    const config::Node* node = placed.find(key);
    return node == nullptr ? config::Place() : node->place();
  };
  const config::Place hosts = place_of("hosts");
  const config::Place hostfile = place_of("hostfile");
  // What is on the command line (it has no lines) takes the place of a file's.
  const bool is_laid_over = hosts.line == 0 && hostfile.line > 0;
  if (!resources.hostfile.empty() && !is_laid_over) {
    return config::invalid_at(
        hostfile, "give either resources.hosts or resources.hostfile");
  }
  const std::string where = hosts.to_string();
  return launch::parse_hosts(
      fmt::format("{}", fmt::join(resources.hosts, ",")),
      where.empty() ? "resources.hosts" : where + ": resources.hosts");
}

Result<std::vector<launch::HostSlots>> chosen_hosts(
    const RunOptions& options,
    const Context& context,
    const launch::Job& job) {
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return invalid("give either --hosts or --hostfile");
  }
  if (!options.hosts.empty()) {
    return launch::parse_hosts(
        fmt::format("{}", fmt::join(options.hosts, ",")));
  }
  const auto& resources = job.resources;
  if (!options.hostfile.empty() ||
      (resources.hosts.empty() && !resources.hostfile.empty())) {
    const std::string file =
        options.hostfile.empty() ? resources.hostfile : options.hostfile;
    LOCKSTEP_ASSIGN(const std::string text, os::real_files().read(file));
    return launch::parse_hostfile(text, file);
  }
  if (resources.hosts.empty()) {
    return std::vector<launch::HostSlots>();
  }
  return hosts_of_job(
      resources, placed_resources(options, context.has_program));
}

std::string chosen_launcher(const RunOrder& order) {
  if (!order.options.launcher.empty()) {
    return order.options.launcher;
  }
  if (!order.priced.job.resources.launcher.empty()) {
    return order.priced.job.resources.launcher;
  }
  const auto& resources = order.priced.job.resources;
  const bool is_far = !order.hosts.empty() || resources.is_rented() ||
                      !resources.cluster.empty();
  return is_far ? "ssh" : "local";
}

Result<void> check_one_node(const RunOrder& order) {
  const int nodes =
      order.options.nodes.value_or(order.priced.job.num_nodes.value_or(1));
  if (nodes > 1) {
    return std::move(
               invalid(fmt::format("{} nodes need hosts to run on", nodes)))
        .with_fix("--hosts a,b or --hostfile F");
  }
  return {};
}

// Slurm's nodes share the workdir, too.
Result<void> mount_in_workdir(const RunOrder& order) {
  return order.options.dry_run ? Result<void>() : mount_here(order.priced.job);
}

Result<int> run_by(const RunOrder& order, const std::string& launcher) {
  const RunOptions& options = order.options;
  const launch::Job& job = order.priced.job;
  if (launcher == "local") {
    if (!order.hosts.empty()) {
      return invalid("--launcher local runs on this machine: leave out hosts");
    }
    LOCKSTEP_TRY(check_one_node(order));
    LOCKSTEP_TRY(launch::check_host_envs(job, {}));
    LOCKSTEP_TRY(mount_in_workdir(order));
    return options.detach ? run_detached(order) : run_local(order);
  }
  if (order.hosts.empty()) {
    LOCKSTEP_TRY(launch::check_host_envs(job, {}));
  }
  if (launcher == "slurm") {
    LOCKSTEP_TRY(mount_in_workdir(order));
    return run_on_slurm(order);
  }
  if (launcher == "mpi") {
    if (order.hosts.empty()) {
      LOCKSTEP_TRY(check_one_node(order));
      LOCKSTEP_TRY(mount_in_workdir(order));
    }
    return order.hosts.empty() ? run_local_mpi(order)
                               : run_on_hosts(order, launcher);
  }
  if (order.hosts.empty()) {
    return std::move(invalid("launcher ssh needs hosts"))
        .with_fix("--hosts a,b, --hostfile F or resources.hosts");
  }
  return run_on_hosts(order, launcher);
}

// Whoever stays until the end stores what the run left.
Result<int> run_and_store(RunOrder& order, const std::string& launcher) {
  const launch::Job& job = order.priced.job;
  if ((order.options.detach && launcher == "mpi") || launcher == "slurm") {
    return std::move(
               invalid(
                   "outputs: nobody would be here at the end to store them"))
        .with_fix("run by agents (--launcher ssh or local) or on a cloud");
  }
  if (!order.options.dry_run) {
    LOCKSTEP_TRY(reach_outputs(job));
  }
  std::optional<record::RunDirectory> run;
  order.made = &run;
  LOCKSTEP_ASSIGN(const int code, run_by(order, launcher));
  if (run && !order.options.detach) {
    LOCKSTEP_TRY(store_outputs(job, *run));
  }
  return code;
}

Result<int> run_job(const RunOptions& options, const Context& context) {
  if (!context.has_program && !options.words.empty() &&
      is_comparison(options.words.front())) {
    return run_comparison(options, context);
  }
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(
      const ResolvedJob priced, resolve_job(options, context, settings));
  LOCKSTEP_ASSIGN(const auto hosts, chosen_hosts(options, context, priced.job));
  RunOrder order{options, context, settings, priced, hosts};
  const std::string launcher = chosen_launcher(order);
  const auto& resources = priced.job.resources;
  if (is_optimised(priced.job)) {
    if (!resources.is_rented() || launcher != "ssh") {
      return invalid(
          "optimise: machines change only where they are rented "
          "(resources.cloud) and agents start the ranks (launcher ssh)");
    }
    return run_optimised(order);
  }
  if (resources.is_rented() || !resources.cluster.empty()) {
    if (launcher != "ssh" && launcher != "mpi") {
      return invalid(
          fmt::format("launcher {} does not run on rented machines", launcher));
    }
    return resources.is_rented() ? run_on_cloud(order, launcher)
                                 : run_on_cluster(order, launcher);
  }
  return priced.job.outputs.empty() ? run_by(order, launcher)
                                    : run_and_store(order, launcher);
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "run", "run a job, or any program after '--', to its end");
  verb->footer(
      "lockstep run JOB.yaml [key=value ...]\n"
      "lockstep run [options] -- PROGRAM ARGS...\n\n"
      "Examples:\n"
      "  lockstep run examples/dcgan-fashion.yaml trainer.max_epochs=1\n"
      "  lockstep run --procs 2 -- python3 train.py\n"
      "  lockstep run --hosts a,b --procs 4 -- python3 train.py\n"
      "  lockstep run --procs 4 --max-duration 1h --price 0.40 -- ./prog");
  auto options = std::make_shared<RunOptions>();
  add_run_options(*verb, *options, context);
  set_action(*verb, context, [&context, options]() -> Result<int> {
    return run_job(*options, context);
  });
}

}  // namespace lockstep::commands
