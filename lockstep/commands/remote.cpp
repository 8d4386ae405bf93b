#include "lockstep/commands/remote.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/base/log.h"
#include "lockstep/commands/report.h"
#include "lockstep/launch/mirror.h"
#include "lockstep/launch/progress.h"

namespace lockstep::commands {

reach::ReachOptions reach_options() {
  reach::ReachOptions options;
  options.program = own_program();
  return options;
}

Result<launch::RunStateFile> state_of(const record::RunDirectory& run) {
  LOCKSTEP_ASSIGN(const auto state, launch::read_run_state(run));
  if (!state) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("run {} was not started by 'lockstep run'", run.id()));
  }
  return *state;
}

std::unique_ptr<launch::Mirror> mirror_of(
    const record::RunDirectory& run,
    const launch::RunStateFile& state,
    std::unique_ptr<reach::Session> session) {
  if (!state.is_remote()) {
    return nullptr;
  }
  const auto connect = [host = state.head_host] {
    return reach::reach(host, reach_options());
  };
  return launch::open_mirror(run, state, connect, std::move(session));
}

Result<int> watch_run(
    const record::RunDirectory& run,
    launch::Mirror* mirror,
    launch::StopSignals& signals,
    const Watch& watch) {
  bool left = false;
  int interrupts = 0;
  const auto wish = [&] {
    const int signal = signals.take();
    if (signal == 0) {
      return launch::Wish::kNothing;
    }
    if (signal == SIGHUP) {
      left = true;
      return launch::Wish::kLeave;
    }
    return ++interrupts == 1 ? launch::Wish::kStop : launch::Wish::kKill;
  };
  Result<launch::RunStateFile> state = launch::RunStateFile();
  {
    launch::Terminal terminal(STDERR_FILENO);
    launch::Progress progress(
        terminal,
        os::real_clock(),
        watch.format == OutputFormat::kQuiet,
        watch.follow.all_ranks);
    if (!watch.first_line.empty()) {
      progress.say(watch.first_line);
    }
    state = launch::follow(run, mirror, progress, watch.follow, wish);
    progress.close();
  }
  if (!state) {
    return Error(std::move(state.error()));
  }
  if (left) {
    return 0;
  }
  if (mirror != nullptr) {
    if (const auto fetched = mirror->fetch_all(); !fetched) {
      log_warning(
          fmt::format(
              "not everything is here yet: {}; 'lockstep attach {}' fetches "
              "the rest",
              fetched.error().to_string(),
              run.id()));
    }
  }
  const auto report = make_report(run);
  if (report) {
    print_report(*report, watch.format);
  } else {
    log_warning(report.error().to_string());
  }
  if (state->state == "lost" && state->exit_code == 0) {
    fmt::print(stderr, "lockstep: {}\n", state->detail);
    return 3;
  }
  return state->exit_code;
}

}  // namespace lockstep::commands
