#include "lockstep/commands/remote.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/base/log.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/costs.h"
#include "lockstep/commands/report.h"
#include "lockstep/launch/mirror.h"
#include "lockstep/launch/progress.h"
#include "lockstep/launch/slurm_mirror.h"

namespace lockstep::commands {

reach::ReachOptions reach_options(std::vector<std::string> ssh_options) {
  reach::ReachOptions options;
  options.ssh_options = std::move(ssh_options);
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
  const launch::RunStateFile now = with_machines(*state);
  if (now.state != state->state) {
    // Nobody else will ever tell how it ended.
    LOCKSTEP_TRY(launch::write_run_state(run, now));
  }
  return launch::with_slurm(run, now);
}

std::unique_ptr<launch::Mirror> mirror_of(
    const record::RunDirectory& run,
    const launch::RunStateFile& state,
    std::unique_ptr<reach::Session> session) {
  if (state.launcher == "slurm") {
    return launch::open_slurm_mirror(run, state);
  }
  if (!state.is_remote()) {
    return nullptr;
  }
  const auto connect = [host = state.head_host, words = state.ssh_options] {
    return reach::reach(host, reach_options(words));
  };
  return launch::open_mirror(run, state, connect, std::move(session));
}

namespace {

// A host of the run that answers while its head does not; empty: none.
std::string witness_of(const record::RunDirectory& run) {
  const auto state = launch::read_run_state(run);
  if (!state || !*state || !(*state)->is_remote()) {
    return "";
  }
  constexpr size_t kMostAsked = 4;
  std::vector<std::string> names = {(*state)->head_host};
  for (const std::string& host : (*state)->hosts) {
    if (host != names.front() && names.size() < kMostAsked) {
      names.push_back(host);
    }
  }
  reach::ReachOptions options = reach_options((*state)->ssh_options);
  options.patience = std::chrono::seconds(5);
  const auto sessions = reach::reach_all(names, options);
  if (sessions.empty() || sessions.front()) {
    return "";
  }
  for (size_t i = 1; i < sessions.size(); ++i) {
    if (sessions[i]) {
      return names[i];
    }
  }
  return "";
}

}  // namespace

void show_report(
    const record::RunDirectory& run,
    const launch::RunStateFile& state,
    OutputFormat format) {
  if (const auto report = make_report(run, &state)) {
    print_report(*report, format);
  } else {
    log_warning(report.error().to_string());
  }
}

Result<int> watch_run(
    const record::RunDirectory& run,
    launch::Mirror* mirror,
    launch::StopSignals& signals,
    const Watch& watch) {
  bool left = false;
  bool head_lost = false;
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
    launch::FollowOptions follow = watch.follow;
    if (follow.gone) {
      follow.gone = [&, asked = watch.follow.gone] {
        const std::string why = asked();
        head_lost = head_lost || !why.empty();
        return why;
      };
    }
    if (mirror != nullptr) {
      follow.witness = [&] {
        const std::string other = witness_of(run);
        head_lost = !other.empty();
        return other;
      };
    }
    state = launch::follow(run, mirror, progress, follow, wish);
    progress.close();
  }
  if (!state) {
    return Error(std::move(state.error()));
  }
  if (left) {
    return 0;
  }
  if (mirror != nullptr && !head_lost) {
    const auto deadline = os::Deadline::after(watch.fetch_patience);
    const auto fetch = [&] {
      return mirror->fetch_all(
          watch.affordable ? watch.affordable() : std::nullopt);
    };
    auto fetched = fetch();
    while (!fetched && fetched.error().code() != ErrorCode::kNoSpace &&
           !deadline.passed() && signals.take() == 0) {
      os::real_clock().sleep_for(std::chrono::seconds(1));
      fetched = fetch();
    }
    state->incomplete =
        !fetched && fetched.error().code() == ErrorCode::kNoSpace;
    if (watch.is_fetched != nullptr) {
      *watch.is_fetched = fetched.has_value();
    }
    if (!fetched) {
      log_warning(
          fmt::format(
              "not everything is here yet: {}; 'lockstep attach {}' fetches "
              "the rest",
              fetched.error().to_string(),
              run.id()));
    }
  }
  if (watch.ended != nullptr) {
    *watch.ended = *state;
  } else {
    show_report(run, *state, watch.format);
  }
  if (head_lost || (state->state == "lost" && state->exit_code == 0)) {
    to_stderr("lockstep: {}\n", state->detail);
    return 3;
  }
  if (mirror != nullptr && !mirror->conclusion().empty()) {
    to_stderr("lockstep: {}\n", mirror->conclusion());
  }
  return state->exit_code;
}

}  // namespace lockstep::commands
