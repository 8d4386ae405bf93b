#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/report.h"
#include "lockstep/commands/run_options.h"
#include "lockstep/commands/table.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/progress.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;

// exec would say so too, but after a run directory was made.
Result<void> check_program(const Job& job, const std::string& program) {
  launch::Environment variables = os::environment();
  variables.insert(job.envs.begin(), job.envs.end());
  if (const auto wanted = job.envs.find("PATH"); wanted != job.envs.end()) {
    variables["PATH"] = wanted->second;
  }
  os::Path file = program;
  if (program.find('/') != std::string::npos && file.is_relative()) {
    file = os::Path(job.workdir) / file;
  }
  if (!find_program(file.string(), variables["PATH"]).empty()) {
    return {};
  }
  std::error_code ignored;
  if (program.find('/') != std::string::npos && fs::exists(file, ignored)) {
    return Error(
               ErrorCode::kPermission,
               fmt::format("cannot run '{}': not executable", program))
        .with_fix(fmt::format("chmod +x {}", program));
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format("cannot run '{}': no such program", program))
      .with_fix("check its name and PATH");
}

Result<os::Path> find_trainer(const Job& job) {
  if (job.train.kind() == config::Node::Kind::kNull) {
    return os::Path();
  }
  os::Path trainer = trainer_program();
  if (trainer.empty()) {
    return Error(ErrorCode::kNotFound, "lockstep-train is not there")
        .with_fix(
            "build it ('make build') or set LOCKSTEP_TRAINER_BIN to its path");
  }
  return trainer;
}

std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() && word.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
                           "Z0123456789_-+=./:,@%") == std::string::npos;
  if (plain) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + quoted(word);
  }
  return line;
}

void print_plan(
    const ResolvedJob& priced,
    const launch::RankPlan& plan,
    const std::vector<std::string>& argv,
    OutputFormat format) {
  const Job& job = priced.job;
  const std::string yaml = launch::job_yaml(job);
  const std::string command = launch::redact(job, shell_line(argv));
  std::optional<Money> hour;
  if (priced.price) {
    hour = *priced.price * static_cast<double>(plan.nodes.size());
  }
  const auto cap = launch::cap_of(job, hour);
  if (format == OutputFormat::kJson) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const auto& slot : plan.slots) {
      ranks.push_back(
          {{"rank", slot.rank},
           {"node", plan.nodes[static_cast<size_t>(slot.node)].host},
           {"local_rank", slot.local_rank}});
    }
    nlohmann::json result = {
        {"job", yaml}, {"command", command}, {"ranks", std::move(ranks)}};
    result["dollars_per_hour"] =
        hour ? nlohmann::json(hour->dollars()) : nlohmann::json();
    std::puts(
        result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
            .c_str());
    return;
  }
  if (format == OutputFormat::kQuiet) {
    return;
  }
  launch::Environment wanted = job.envs;
  launch::GenerationFacts facts;
  const auto variables = launch::rank_environment(
      plan, plan.slots.front(), facts, os::environment(), wanted);
  fmt::print("{}\ncommand: {}\n\n", yaml, command);
  Table table({"rank", "node", "host", "local_rank", "OMP_NUM_THREADS"});
  for (const auto& slot : plan.slots) {
    table.add(
        {std::to_string(slot.rank),
         std::to_string(slot.node),
         plan.nodes[static_cast<size_t>(slot.node)].host,
         std::to_string(slot.local_rank),
         variables.at("OMP_NUM_THREADS")});
  }
  fmt::print("{}\n", table.to_string());
  if (!hour) {
    fmt::print("cost: no price is known (--price, resources.price)\n");
  } else if (cap) {
    fmt::print(
        "cost: {} an hour ({}), at most {} by {}\n",
        format_money(*hour),
        priced.source,
        format_money(*hour * (to_seconds(cap->end) / 3600)),
        cap->reason);
  } else {
    fmt::print(
        "cost: {} an hour ({}), no cap\n", format_money(*hour), priced.source);
  }
}

// A program that wrote metrics as events, or was read by patterns, has no
// table of them yet; the trainer makes its own.
Result<void> write_metrics(const record::RunDirectory& run) {
  if (os::real_files().exists(run.metrics())) {
    return {};
  }
  std::map<int64_t, std::pair<int64_t, std::map<std::string, double>>> sums;
  std::map<std::pair<int64_t, std::string>, int> counts;
  record::EventReader reader(run.events());
  LOCKSTEP_TRY(reader.poll([&](const wire::Event& event, const auto&) {
    if (const auto* metric = std::get_if<wire::Metric>(&event.body)) {
      auto& [epoch, values] = sums[metric->step];
      epoch = metric->epoch;
      for (const auto& [name, value] : metric->values) {
        values[name] += value;
        ++counts[{metric->step, name}];
      }
    }
  }));
  if (sums.empty()) {
    return {};
  }
  LOCKSTEP_ASSIGN(
      auto table, record::MetricsTable::open(os::real_files(), run.metrics()));
  for (auto& [step, row] : sums) {
    for (auto& [name, value] : row.second) {
      value /= counts[{step, name}];
    }
    LOCKSTEP_TRY(table.add(step, row.first, row.second));
  }
  return {};
}

void warn(const Result<void>& result) {
  if (!result) {
    log_warning(result.error().to_string());
  }
}

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

std::string program_name(const Job& job, const std::vector<std::string>& argv) {
  if (job.train.kind() == config::Node::Kind::kNull) {
    std::string line = launch::redact(job, shell_line(argv));
    std::ranges::replace(line, '\n', ' ');
    return line;
  }
  return "lockstep-train " + argv[1];
}

Result<int> run_job(const RunOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(
      const ResolvedJob priced, resolve_job(options, context, settings));
  const Job& job = priced.job;
  const OutputFormat format = context.format();

  launch::RunRequest request;
  request.job = job;
  request.started = context.started;
  request.retries = options.retries;
  request.show_all = options.ranks == "all";
  request.timeout = priced.timeout;
  LOCKSTEP_ASSIGN(request.trainer, find_trainer(job));
  LOCKSTEP_ASSIGN(
      const std::vector<std::string> argv,
      launch::job_command(job, request.trainer, 0));
  LOCKSTEP_TRY(check_program(job, argv[0]));
  request.program = program_name(job, argv);

  const auto launcher = launch::make_local_launcher(own_program());
  LOCKSTEP_ASSIGN(auto nodes, launcher->nodes(job.procs_per_node.value_or(0)));
  LOCKSTEP_ASSIGN(request.plan, launch::plan_ranks(std::move(nodes)));
  if (priced.price) {
    request.price_per_hour =
        *priced.price * static_cast<double>(request.plan.nodes.size());
  }
  if (options.dry_run) {
    print_plan(priced, request.plan, argv, format);
    return 0;
  }

  // Before any thread is there.
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  LOCKSTEP_ASSIGN(
      const auto run,
      record::RunDirectory::create(
          fs::absolute(settings.runs_dir).lexically_normal(), job.name));
  {
    LOCKSTEP_ASSIGN(auto file, os::real_files().open_append(run.job()));
    LOCKSTEP_TRY(file->append(launch::job_yaml(job)));
  }
  launch::RunStateFile state;
  state.id = run.id();
  state.name = job.name;
  state.state = "running";
  state.host = request.plan.nodes.front().host;
  state.pid = ::getpid();
  state.pid_start = launch::start_ticks(state.pid).value_or(0);
  state.started = os::real_clock().unix_seconds();
  state.world_size = request.plan.world_size();
  state.command = launch::redact(job, "lockstep " + shell_line(context.words));
  if (request.price_per_hour) {
    state.dollars_per_hour = request.price_per_hour->dollars();
    state.price_source = priced.source;
  }
  LOCKSTEP_TRY(launch::write_run_state(run, state));

  Result<launch::RunOutcome> outcome = launch::RunOutcome{};
  {
    launch::Terminal terminal(STDERR_FILENO);
    launch::Progress progress(
        terminal,
        os::real_clock(),
        format == OutputFormat::kQuiet,
        request.show_all);
    progress.say(
        fmt::format(
            "{}: {} rank{} of {}",
            run.id(),
            state.world_size,
            state.world_size == 1 ? "" : "s",
            shortened(request.program)));
    outcome =
        launch::supervise(*launcher, request, run, state, signals, progress);
    progress.close();
  }
  state.ended = os::real_clock().unix_seconds();
  state.state = outcome ? launch::to_string(outcome->end) : "failed";
  state.exit_code = outcome ? launch::exit_code(outcome->end) : 1;
  state.detail = launch::redact(
      job, outcome ? outcome->detail : outcome.error().to_string());
  warn(launch::write_run_state(run, state));
  if (!outcome) {
    return Error(std::move(outcome.error()));
  }
  // A failure was told when it happened.
  if (!outcome->failure && outcome->end != launch::RunEnd::kDone) {
    fmt::print(stderr, "lockstep: {}\n", state.detail);
  }
  warn(write_metrics(run));
  warn(
      record::write_logbook(
          run,
          {.name = job.name,
           .command = state.command,
           .price_per_hour = request.price_per_hour,
           .price_source = priced.source,
           .started = state.started,
           .ended = state.ended,
           .ending =
               outcome->end == launch::RunEnd::kDone ? "" : state.detail}));
  const auto report = make_report(run);
  if (report) {
    print_report(*report, format);
  } else {
    log_warning(report.error().to_string());
  }
  return state.exit_code;
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
      "  lockstep run --procs 4 --max-duration 1h --price 0.40 -- ./prog");
  auto options = std::make_shared<RunOptions>();
  add_run_options(*verb, *options, context);
  set_action(*verb, context, [&context, options]() {
    return run_job(*options, context);
  });
}

}  // namespace lockstep::commands
