#include "lockstep/commands/command.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_options.h"

namespace lockstep::commands {
namespace {

Result<int> run_job(const RunOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(
      const ResolvedJob priced, resolve_job(options, context, settings));
  LOCKSTEP_TRY(launch::check_host_envs(priced.job, {}));
  return run_local({options, context, settings, priced});
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
