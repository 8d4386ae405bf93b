#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/remote.h"
#include "lockstep/launch/run_state.h"

namespace lockstep::commands {
namespace {

struct StopOptions {
  std::string run;
  bool now = false;
};

void tell(const Context& context, const record::RunDirectory& run) {
  if (context.format() == OutputFormat::kTable) {
    to_stderr("stopping {}\n", run.id());
  }
}

// Through its head, and until everything is here.
Result<void> stop_remote(
    const StopOptions& options,
    const Context& context,
    const record::RunDirectory& run,
    const launch::RunStateFile& state) {
  const auto mirror = mirror_of(run, state);
  LOCKSTEP_TRY(mirror->stop(options.now));
  tell(context, run);
  while (true) {
    LOCKSTEP_ASSIGN(
        const bool complete,
        mirror->update(os::Deadline::after(std::chrono::seconds(1))));
    if (complete && !mirror->state().is_running()) {
      return mirror->fetch_all({});
    }
  }
}

// How it ended: what `report` says of it, in short.
Result<void> print_end(
    const Context& context,
    const record::RunDirectory& run,
    bool was_running) {
  if (context.format() == OutputFormat::kJson) {
    LOCKSTEP_ASSIGN(const auto state, state_of(run));
    const nlohmann::json said = {
        {"id", run.id()},
        {"state", state.state},
        {"exit_code", state.exit_code}};
    fmt::print(
        "{}\n",
        said.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (was_running && context.format() != OutputFormat::kQuiet) {
    fmt::print("{} stopped\n", run.id());
  }
  return {};
}

Result<int> stop(const StopOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto run, find_run(settings, options.run));
  LOCKSTEP_ASSIGN(const auto state, state_of(run));
  if (state.has_ended()) {
    to_stderr("run {} is not running: {}\n", run.id(), state.state);
    LOCKSTEP_TRY(print_end(context, run, false));
    return 0;
  }
  if (state.is_remote() || state.launcher == "slurm") {
    LOCKSTEP_TRY(stop_remote(options, context, run, state));
  } else {
    LOCKSTEP_ASSIGN(const bool running, launch::signal_run(state, options.now));
    if (!running) {
      to_stderr("run {} has ended\n", run.id());
      LOCKSTEP_TRY(print_end(context, run, false));
      return 0;
    }
    tell(context, run);
    launch::wait_until_ended(state, os::Deadline::never());
  }
  LOCKSTEP_TRY(print_end(context, run, true));
  return 0;
}

}  // namespace

void add_stop(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("stop", "end a run: stop signal, grace, then SIGKILL");
  verb->alias("cancel");
  verb->footer("Example: lockstep stop last");
  auto options = std::make_shared<StopOptions>();
  verb->add_option("run", options->run, "id, name, start of one, or 'last'")
      ->required()
      ->type_name("RUN");
  verb->add_flag("--now", options->now, "without grace");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return stop(*options, context);
  });
}

}  // namespace lockstep::commands
