#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/check_train.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/commands/report.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/commands/uploader.h"
#include "lockstep/launch/companion.h"
#include "lockstep/launch/detached.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/node_verbs.h"
#include "lockstep/launch/program.h"
#include "lockstep/launch/progress.h"
#include "lockstep/launch/run_record.h"
#include "lockstep/launch/shell.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;

// exec would say so too, but after a run directory was made.
Result<void> check_program(const Job& job, const std::string& program) {
  launch::Environment variables = os::environment();
  if (const auto wanted = job.envs.find("PATH"); wanted != job.envs.end()) {
    variables["PATH"] = wanted->second;
  }
  return launch::check_program(program, job.workdir, variables["PATH"]);
}

struct LocalPlan {
  launch::RunRequest request;
  std::vector<std::string> argv;
};

Result<LocalPlan> make_plan(const RunOrder& order) {
  const Job& job = order.priced.job;
  LocalPlan plan;
  launch::RunRequest& request = plan.request;
  request.job = job;
  request.started = order.context.started;
  request.retries = order.options.retries;
  request.show_all = order.options.ranks == "all";
  request.timeout = order.priced.timeout;
  LOCKSTEP_ASSIGN(request.trainer, find_trainer(job));
  LOCKSTEP_ASSIGN(plan.argv, launch::job_command(job, request.trainer, 0));
  // What runs in a container is the image's own.
  if (job.container.kind() == config::Node::Kind::kNull) {
    LOCKSTEP_TRY(check_program(job, plan.argv[0]));
  }
  request.program = program_name(job, plan.argv);
  const auto launcher = launch::make_local_launcher(own_program());
  LOCKSTEP_ASSIGN(auto nodes, launcher->nodes(job.procs_per_node.value_or(0)));
  LOCKSTEP_ASSIGN(request.plan, launch::plan_ranks(std::move(nodes)));
  LOCKSTEP_TRY(check_train(job, request.trainer, request.plan));
  request.price_per_hour = order.priced.price;
  return plan;
}

Result<record::RunDirectory> make_run(const RunOrder& order) {
  return record::RunDirectory::create(
      fs::absolute(order.settings.runs_dir).lexically_normal(),
      order.priced.job.name);
}

// Up to the first state on the disk.
Result<std::string> begin_run(
    const record::RunDirectory& run,
    const launch::Job& job,
    const launch::RunStateFile& state) {
  LOCKSTEP_ASSIGN(std::string uploader, uploader_orders(job, run, Keys::kSent));
  LOCKSTEP_TRY(launch::begin_record(run, job, state));
  return uploader;
}

// Half a directory would be a run that nobody can explain.
Error without(const record::RunDirectory& run, Error error) {
  std::error_code ignored;
  fs::remove_all(run.path(), ignored);
  return error;
}

// The job began: its code is 1, whatever was the matter.
Error of_job(Error error) {
  const bool is_input = error.code() == ErrorCode::kIo ||
                        error.code() == ErrorCode::kNoSpace ||
                        error.code() == ErrorCode::kCorrupt;
  return is_input ? Error(ErrorCode::kInternal, error.to_string())
                  : std::move(error);
}

}  // namespace

Result<os::Path> find_trainer(const Job& job) {
  if (job.train.kind() == config::Node::Kind::kNull) {
    return os::Path();
  }
  os::Path trainer = trainer_program();
  const bool is_own = job.container.kind() == config::Node::Kind::kNull;
  if (trainer.empty() && is_own) {
    return Error(ErrorCode::kNotFound, "lockstep-train is not there")
        .with_fix(
            "build it ('make build') or set LOCKSTEP_TRAINER_BIN to its path");
  }
  return trainer;
}

void print_detached(
    const record::RunDirectory& run,
    const Settings& settings,
    OutputFormat format) {
  if (format == OutputFormat::kQuiet) {
    return;
  }
  if (format == OutputFormat::kJson) {
    const nlohmann::json result = {
        {"id", run.id()}, {"directory", run.path().string()}};
    fmt::print("{}\n", result.dump(2));
    return;
  }
  const std::string where =
      settings.runs_dir == Settings().runs_dir
          ? ""
          : fmt::format(
                " --runs-dir {}", launch::shell_line({settings.runs_dir}));
  fmt::print("{}\n", run.id());
  to_stderr(
      "it goes on without you; lockstep attach {0}{1}, logs -f {0}{1}, "
      "stop {0}{1}\n",
      run.id(),
      where);
}

Result<int> run_local(const RunOrder& order) {
  const OutputFormat format = order.context.format();
  LOCKSTEP_ASSIGN(const LocalPlan plan, make_plan(order));
  const launch::RunRequest& request = plan.request;
  if (order.options.dry_run) {
    print_plan(order.priced, request.plan, plan.argv, format);
    return 0;
  }
  // Before any thread is there.
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  LOCKSTEP_ASSIGN(const auto run, make_run(order));
  order.tell(run);
  launch::RunStateFile state = launch::first_state(run, request);
  state.outputs = outputs_of(request.job, run);
  state.command = repeat_command(request.job, order.context);
  state.price_source = order.priced.source;
  const auto uploader = begin_run(run, request.job, state);
  if (!uploader) {
    return without(run, uploader.error());
  }
  const auto launcher = launch::make_local_launcher(own_program());
  Result<launch::RunOutcome> outcome = launch::RunOutcome{};
  {
    launch::Terminal terminal(STDERR_FILENO);
    launch::Progress progress(
        terminal,
        os::real_clock(),
        format == OutputFormat::kQuiet,
        request.show_all);
    progress.say(headline(run.id(), state.world_size, 0, request.program));
    // What it has not stored at the end is run_and_store's.
    const launch::Companion uploading(
        own_program(), "uploader", run.path(), *uploader);
    outcome =
        launch::supervise(*launcher, request, run, state, signals, progress);
    progress.close();
  }
  launch::end_record(run, request.job, outcome, state);
  if (!outcome) {
    return of_job(std::move(outcome.error()));
  }
  // A failure was told when it happened.
  if (!outcome->failure && outcome->end != launch::RunEnd::kDone) {
    to_stderr("lockstep: {}\n", state.detail);
  }
  const auto report = make_report(run, &state);
  if (report) {
    print_report(*report, format);
  } else {
    log_warning(report.error().to_string());
  }
  return state.exit_code;
}

Result<int> run_detached(const RunOrder& order) {
  LOCKSTEP_ASSIGN(const LocalPlan plan, make_plan(order));
  const launch::RunRequest& request = plan.request;
  if (order.options.dry_run) {
    print_plan(order.priced, request.plan, plan.argv, order.context.format());
    return 0;
  }
  LOCKSTEP_ASSIGN(const auto run, make_run(order));
  launch::HeadSpec spec = first_spec(order, run, "local", plan.argv);
  launch::HeadNode node;
  node.host = request.plan.nodes.front().host;
  node.procs = request.plan.nodes.front().procs;
  node.workdir = request.job.workdir;
  node.trainer = request.trainer;
  spec.nodes.push_back(std::move(node));
  spec.price_per_hour = request.price_per_hour;
  spec.outputs = outputs_of(request.job, run);
  LOCKSTEP_ASSIGN(
      spec.uploader, uploader_orders(request.job, run, Keys::kSent));
  constexpr auto kPatience = std::chrono::seconds(60);
  LOCKSTEP_ASSIGN(
      const std::string line,
      launch::start_detached(
          {own_program().string(), "head"},
          launch::to_json(spec),
          os::Deadline::after(kPatience)));
  if (const auto begun = launch::parse_head_line(line); !begun) {
    return without(run, begun.error());  // it has ended
  }
  print_detached(run, order.settings, order.context.format());
  return 0;
}

}  // namespace lockstep::commands
