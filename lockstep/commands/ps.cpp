#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/tail.h"
#include "lockstep/wire/event.h"

namespace lockstep::commands {
namespace {

// The last step that the end of events.jsonl tells; 0: none.
int64_t last_step(const record::RunDirectory& run) {
  constexpr size_t kLines = 64;
  int64_t step = 0;
  for (const std::string& line : launch::last_lines(run.events(), kLines)) {
    const auto event = wire::parse_event(line);
    if (!event) {
      continue;
    }
    if (const auto* done = std::get_if<wire::Iteration>(&event->body)) {
      step = std::max(step, done->step);
    }
  }
  return step;
}

std::string clock_text(double unix_seconds) {
  return fmt::format(
      "{:%Y-%m-%d %H:%M:%S}",
      fmt::localtime(static_cast<std::time_t>(unix_seconds)));
}

Result<int> list(const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto runs, record::list_runs(settings.runs_dir));
  nlohmann::json all = nlohmann::json::array();
  Table table({"run", "state", "ranks", "started", "duration", "step", "code"});
  for (const record::RunDirectory& run : runs) {
    const auto state = launch::read_run_state(run);
    if (!state) {
      log_warning(state.error().to_string());
      continue;
    }
    const launch::RunStateFile one =
        state->value_or(launch::RunStateFile{.id = run.id(), .state = "alone"});
    const int64_t step = last_step(run);
    const double end = one.ended > 0 ? one.ended
                       : one.state == "running"
                           ? os::real_clock().unix_seconds()
                           : 0;
    const double seconds = end > 0 ? end - one.started : 0;
    if (context.format() == OutputFormat::kQuiet) {
      fmt::print("{}\n", run.id());
    }
    all.push_back(
        {{"id", run.id()},
         {"state", one.state},
         {"detail", one.detail},
         {"ranks", one.world_size},
         {"started", one.started},
         {"seconds", seconds},
         {"step", step},
         {"exit_code", one.exit_code},
         {"pid", one.pid},
         {"directory", run.path().string()}});
    table.add(
        {run.id(),
         one.state,
         one.world_size > 0 ? std::to_string(one.world_size) : "-",
         one.started > 0 ? clock_text(one.started) : "-",
         seconds > 0 ? format_duration(from_seconds(seconds)) : "-",
         step > 0 ? std::to_string(step) : "-",
         one.ended > 0 ? std::to_string(one.exit_code) : "-"});
  }
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (context.format() == OutputFormat::kTable && table.empty()) {
    fmt::print(stderr, "no runs under {}\n", settings.runs_dir);
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
