#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/costs.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/table.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/slurm_mirror.h"
#include "lockstep/reach/session.h"

namespace lockstep::commands {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);

struct Row {
  record::RunDirectory run;
  launch::RunStateFile state;
  int64_t step = 0;
};

// What the head of runs on other machines says; `rows` share one head.
void ask_head(const std::vector<Row*>& rows) {
  reach::ReachOptions options = reach_options(rows.front()->state.ssh_options);
  options.patience = kPatience;
  const auto deadline = os::Deadline::after(kPatience);
  const auto session = reach::reach(rows.front()->state.head_host, options);
  for (Row* row : rows) {
    if (!session) {
      row->state.detail = session.error().to_string();
      row->state.state = "unreachable";
      continue;
    }
    const auto answer = (*session)->call(
        "state", {{"directory", row->state.head_directory}}, deadline);
    const auto told =
        answer ? launch::parse_run_state(
                     answer->value("state", ""), row->state.head_host)
               : Result<launch::RunStateFile>(Error(answer.error()));
    if (!told) {
      row->state.detail = told.error().to_string();
      row->state.state = "unreachable";
      continue;
    }
    row->state.state = told->state;
    row->state.detail = told->detail;
    row->state.exit_code = told->exit_code;
    row->state.generation = told->generation;
    row->state.ended =
        told->ended > 0 ? row->state.started + told->ended - told->started : 0;
    row->step = std::max(row->step, answer->value("step", int64_t{0}));
  }
}

void ask_heads(std::vector<Row>& rows) {
  std::map<std::string, std::vector<Row*>> by_head;
  for (Row& row : rows) {
    if (row.state.is_running() && row.state.is_remote() &&
        !machines_ended(row.state)) {
      by_head[row.state.head_host].push_back(&row);
    }
  }
  std::vector<std::thread> threads;
  for (const auto& [host, some] : by_head) {
    threads.emplace_back([&some] { ask_head(some); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::string clock_text(double unix_seconds) {
  return fmt::format(
      "{:%Y-%m-%d %H:%M:%S}",
      fmt::localtime(static_cast<std::time_t>(unix_seconds)));
}

// "n1 +3": the head and how many nodes besides.
std::string where(const launch::RunStateFile& state) {
  if (!state.is_remote()) {
    return state.launcher == "local" ? "here" : state.launcher;
  }
  return state.hosts.size() > 1
             ? fmt::format("{} +{}", state.head_host, state.hosts.size() - 1)
             : state.head_host;
}

Result<int> list(const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto runs, record::list_runs(settings.runs_dir));
  std::vector<Row> rows;
  for (const record::RunDirectory& run : runs) {
    const auto state = launch::read_run_state(run);
    if (!state) {
      log_warning(state.error().to_string());
    }
    launch::RunStateFile other;
    other.id = run.id();
    other.state = state ? "alone" : "unreadable";
    other.detail = state ? "" : state.error().to_string();
    rows.push_back(
        {run, state ? state->value_or(other) : other, launch::last_step(run)});
  }
  ask_heads(rows);
  for (Row& row : rows) {
    row.state =
        with_machines(launch::with_slurm(row.run, std::move(row.state)));
  }
  nlohmann::json all = nlohmann::json::array();
  Table table(
      {"run",
       "state",
       "ranks",
       "where",
       "started",
       "duration",
       "step",
       "cost",
       "code"});
  for (const Row& row : rows) {
    const launch::RunStateFile& one = row.state;
    const double end = one.ended > 0 ? one.ended
                       : one.is_running() || one.state == "unreachable"
                           ? os::real_clock().unix_seconds()
                           : 0;
    const double seconds = end > 0 ? end - one.started : 0;
    const auto cost = cost_of(one, row.run);
    if (context.format() == OutputFormat::kQuiet) {
      fmt::print("{}\n", row.run.id());
    }
    all.push_back(
        {{"id", row.run.id()},
         {"state", one.state},
         {"detail", one.detail},
         {"ranks", one.world_size},
         {"launcher", one.launcher},
         {"head", one.head_host},
         {"hosts", one.hosts},
         {"started", one.started},
         {"seconds", seconds},
         {"step", row.step},
         {"cost", cost ? nlohmann::json(cost->dollars()) : nlohmann::json()},
         {"exit_code",
          one.ended > 0 ? nlohmann::json(one.exit_code) : nlohmann::json()},
         {"pid", one.pid},
         {"directory", row.run.path().string()}});
    table.add(
        {row.run.id(),
         one.state,
         one.world_size > 0 ? std::to_string(one.world_size) : "-",
         where(one),
         one.started > 0 ? clock_text(one.started) : "-",
         seconds > 0 ? format_duration(from_seconds(seconds)) : "-",
         row.step > 0 ? std::to_string(row.step) : "-",
         cost ? format_money(*cost) : "-",
         one.ended > 0 ? std::to_string(one.exit_code) : "-"});
  }
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (context.format() == OutputFormat::kTable && table.empty()) {
    to_stderr("no runs under {}\n", settings.runs_dir);
  } else if (context.format() == OutputFormat::kTable) {
    fmt::print("{}", table.to_string());
  }
  return 0;
}

}  // namespace

void add_ps(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("ps", "list runs, the newest first");
  verb->footer("Example: lockstep ps --runs-dir runs");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context]() { return list(context); });
}

}  // namespace lockstep::commands
