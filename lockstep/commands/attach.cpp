
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>

#include "lockstep/base/log.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/remote.h"

namespace lockstep::commands {
namespace {

struct AttachOptions {
  std::string run = "last";
  std::string ranks = "0";
  bool from_start = false;
};

Result<int> attach(const AttachOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto run, find_run(settings, options.run));
  LOCKSTEP_ASSIGN(const auto state, state_of(run));
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  const auto mirror = mirror_of(run, state);
  if (state.has_ended() && state.incomplete && mirror != nullptr) {
    // Whoever asks for it pays for it.
    if (const auto fetched = mirror->fetch_all({}); !fetched) {
      log_warning(
          fmt::format(
              "what is missing cannot be fetched: {}",
              fetched.error().to_string()));
    }
  }
  Watch watch;
  watch.format = context.format();
  watch.follow.all_ranks = options.ranks == "all";
  watch.follow.from_start = options.from_start;
  return watch_run(
      run, state.has_ended() ? nullptr : mirror.get(), signals, watch);
}

}  // namespace

void add_attach(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "attach", "watch a run again, as 'lockstep run' shows it");
  verb->footer(
      "Ctrl-C stops the run; closing the terminal leaves it alone.\n"
      "Example: lockstep attach last --ranks all");
  auto options = std::make_shared<AttachOptions>();
  verb->add_option("run", options->run, "id, name, start of one, or 'last'")
      ->type_name("RUN");
  verb->add_option("--ranks", options->ranks, "whose output: 0 or all")
      ->check(CLI::IsMember({"0", "all"}))
      ->type_name("R");
  verb->add_flag(
      "--from-start", options->from_start, "output from the beginning");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return attach(*options, context);
  });
}

}  // namespace lockstep::commands
