#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "lockstep/commands/command.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::commands {
namespace {

struct StopOptions {
  std::string run;
  bool now = false;
};

Result<int> stop(const StopOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto run, find_run(settings, options.run));
  LOCKSTEP_ASSIGN(const auto state, launch::read_run_state(run));
  if (!state) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("run {} was not started by 'lockstep run'", run.id()));
  }
  if (state->state != "running") {
    fmt::print(stderr, "run {} is not running: {}\n", run.id(), state->state);
    return 0;
  }
  // The handle first, then the check: after it the pid cannot change hands.
  const os::Descriptor process(
      static_cast<int>(::syscall(SYS_pidfd_open, state->pid, 0)));
  if (!process || launch::start_ticks(state->pid) != state->pid_start) {
    fmt::print(stderr, "run {} has ended\n", run.id());
    return 0;
  }
  for (int i = 0; i < (options.now ? 2 : 1); ++i) {
    if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) !=
            0 &&
        errno != ESRCH) {
      return os_error(
          fmt::format("cannot signal process {}", state->pid), errno);
    }
    if (i == 0 && options.now) {
      // One pending signal is one: let the first be taken.
      pollfd ended{process.get(), POLLIN, 0};
      ::poll(&ended, 1, 200);
    }
  }
  if (context.format() == OutputFormat::kTable) {
    fmt::print(stderr, "stopping {}\n", run.id());
  }
  pollfd ended{process.get(), POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {}
  if (context.format() != OutputFormat::kQuiet) {
    fmt::print("{} stopped\n", run.id());
  }
  return 0;
}

}  // namespace

void add_stop(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("stop", "end a run: stop signal, grace, then SIGKILL");
  verb->alias("cancel");
  verb->footer("Example: lockstep stop last");
  auto options = std::make_shared<StopOptions>();
  verb->add_option("run", options->run, "id, the start of one, or 'last'")
      ->required()
      ->type_name("RUN");
  verb->add_flag("--now", options->now, "without grace");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return stop(*options, context);
  });
}

}  // namespace lockstep::commands
