#include <fmt/format.h>

#include <csignal>
#include <filesystem>

#include "lockstep/commands/check_train.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/run_record.h"
#include "lockstep/launch/slurm.h"
#include "lockstep/launch/slurm_mirror.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;

struct SlurmPlan {
  launch::RankPlan ranks;
  std::vector<std::string> argv;
  os::Path trainer;
  int nodes = 1;
  int procs = 1;
};

Result<SlurmPlan> make_plan(const RunOrder& order) {
  const Job& job = order.priced.job;
  SlurmPlan plan;
  plan.nodes = order.options.nodes.value_or(job.num_nodes.value_or(1));
  plan.procs = job.procs_per_node.value_or(1);
  LOCKSTEP_ASSIGN(plan.trainer, find_trainer(job));
  LOCKSTEP_ASSIGN(plan.argv, launch::job_command(job, plan.trainer, 0));
  std::vector<launch::PlannedNode> nodes;
  for (int node = 0; node < plan.nodes; ++node) {
    nodes.push_back({fmt::format("(Slurm's {})", node), plan.procs, 1, ""});
  }
  LOCKSTEP_ASSIGN(plan.ranks, launch::plan_ranks(std::move(nodes)));
  LOCKSTEP_TRY(check_train(job, plan.trainer, plan.ranks));
  return plan;
}

launch::HeadSpec head_spec(
    const RunOrder& order,
    const SlurmPlan& plan,
    const record::RunDirectory& run) {
  launch::HeadSpec spec = first_spec(order, run, "slurm", plan.argv);
  launch::HeadNode node;  // each node of the allocation
  node.procs = plan.procs;
  node.workdir = order.priced.job.workdir;
  node.trainer = plan.trainer;
  node.folder = os::Path("/tmp") / ("lockstep-" + run.id());
  spec.nodes.push_back(std::move(node));
  if (order.priced.price) {
    spec.price_per_hour = *order.priced.price * static_cast<double>(plan.nodes);
  }
  return spec;
}

launch::SlurmBatch batch_of(
    const RunOrder& order,
    const SlurmPlan& plan,
    const record::RunDirectory& run) {
  const Job& job = order.priced.job;
  launch::SlurmBatch batch;
  batch.name = job.name;
  batch.nodes = plan.nodes;
  batch.procs = plan.procs;
  batch.limit = launch::slurm_limit(job, order.priced.timeout);
  batch.grace = job.grace;
  batch.config = job.slurm;
  batch.program = own_program();
  batch.folder = run.path() / "slurm";
  batch.workdir = job.workdir;
  return batch;
}

}  // namespace

Result<int> run_on_slurm(const RunOrder& order) {
  if (!order.hosts.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        "launcher slurm chooses the hosts itself: leave out hosts, and use "
        "--nodes and slurm.options");
  }
  LOCKSTEP_ASSIGN(const SlurmPlan plan, make_plan(order));
  if (order.options.dry_run) {
    print_plan(order.priced, plan.ranks, plan.argv, order.context.format());
    return 0;
  }
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  LOCKSTEP_ASSIGN(
      const auto run,
      record::RunDirectory::create(
          fs::absolute(order.settings.runs_dir).lexically_normal(),
          order.priced.job.name));
  const launch::HeadSpec spec = head_spec(order, plan, run);
  launch::RunRequest request;
  request.job = order.priced.job;
  request.plan = plan.ranks;
  request.program = spec.program;
  request.price_per_hour = spec.price_per_hour;
  launch::RunStateFile state = launch::first_state(run, request);
  state.launcher = "slurm";
  state.host = "";  // of the head, once it runs
  state.pid = 0;
  state.pid_start = 0;
  state.command = spec.command;
  state.price_source = spec.price_source;
  // Before the job can start: from then on the head writes it.
  LOCKSTEP_TRY(launch::begin_record(run, order.priced.job, state));
  const launch::SlurmBatch batch = batch_of(order, plan, run);
  const auto id = launch::submit(batch, launch::to_json(spec));
  if (!id) {
    std::error_code ignored;
    fs::remove_all(run.path(), ignored);
    return Error(id.error());
  }
  state.job_id = *id;
  if (order.options.detach) {
    print_detached(run, order.settings, order.context.format());
    return 0;
  }
  const auto mirror = launch::open_slurm_mirror(run, state);
  Watch watch;
  watch.format = order.context.format();
  watch.first_line = fmt::format(
      "{}, Slurm job {}, at most {}",
      headline(
          run.id(),
          plan.ranks.world_size(),
          plan.ranks.nodes.size(),
          spec.program),
      *id,
      format_duration(batch.limit));
  watch.follow.all_ranks = order.options.ranks == "all";
  watch.follow.from_start = true;
  return watch_run(run, mirror.get(), signals, watch);
}

}  // namespace lockstep::commands
