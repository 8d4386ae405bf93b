#include <fmt/format.h>

#include <csignal>
#include <filesystem>

#include "lockstep/base/id.h"
#include "lockstep/commands/check_train.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/launch/detached.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/node_verbs.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

launch::HeadSpec first_spec(
    const RunOrder& order,
    const record::RunDirectory& run,
    const std::string& launcher,
    const std::vector<std::string>& argv) {
  const Job& job = order.priced.job;
  launch::HeadSpec spec;
  spec.launcher = launcher;
  spec.run_id = run.id();
  spec.name = job.name;
  spec.runs_dir = run.path().parent_path();
  spec.job = launch::job_text(job);
  spec.secrets = job.secret_values;
  spec.key = to_hex(make_key());
  spec.command = repeat_command(job, order.context);
  spec.program = program_name(job, argv);
  spec.retries = order.options.retries;
  spec.timeout = order.priced.timeout;
  spec.price_source = order.priced.source;
  spec.first_port = order.priced.ports.first;
  spec.last_port = order.priced.ports.last;
  return spec;
}

Result<int> watch_local_head(
    const RunOrder& order,
    const record::RunDirectory& run,
    const launch::HeadSpec& spec,
    const std::string& first_line,
    launch::StopSignals& signals) {
  LOCKSTEP_ASSIGN(
      const std::string line,
      launch::start_detached(
          {own_program().string(), "head"},
          launch::to_json(spec),
          os::Deadline::after(kPatience)));
  LOCKSTEP_TRY(launch::parse_head_line(line));
  order.tell(run);
  if (order.options.detach) {
    print_detached(run, order.settings, order.context.format());
    return 0;
  }
  Watch watch;
  watch.format = order.context.format();
  watch.first_line = first_line;
  watch.follow.all_ranks = order.options.ranks == "all";
  watch.follow.from_start = true;
  if (order.rented != nullptr && order.rented->reports) {
    watch.ended = &order.rented->ended;
  }
  return watch_run(run, nullptr, signals, watch);
}

Result<int> run_local_mpi(const RunOrder& order) {
  const Job& job = order.priced.job;
  const auto launcher = launch::make_local_launcher(own_program());
  LOCKSTEP_ASSIGN(auto nodes, launcher->nodes(job.procs_per_node.value_or(0)));
  LOCKSTEP_ASSIGN(const auto plan, launch::plan_ranks(std::move(nodes)));
  LOCKSTEP_ASSIGN(const os::Path trainer, find_trainer(job));
  LOCKSTEP_ASSIGN(const auto argv, launch::job_command(job, trainer, 0));
  LOCKSTEP_TRY(check_train(job, trainer, plan));
  if (order.options.dry_run) {
    print_plan(order.priced, plan, argv, order.context.format());
    return 0;
  }
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  LOCKSTEP_ASSIGN(
      const auto run,
      record::RunDirectory::create(
          fs::absolute(order.settings.runs_dir).lexically_normal(), job.name));
  launch::HeadSpec spec = first_spec(order, run, "mpi", argv);
  launch::HeadNode node;
  node.host = plan.nodes.front().host;
  node.procs = plan.nodes.front().procs;
  node.workdir = job.workdir;
  node.trainer = trainer;
  node.folder = run.path() / "shims";
  spec.nodes.push_back(std::move(node));
  spec.price_per_hour = order.priced.price;
  return watch_local_head(
      order,
      run,
      spec,
      headline(run.id(), plan.world_size(), 0, spec.program),
      signals);
}

}  // namespace lockstep::commands
