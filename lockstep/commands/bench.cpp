#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/commands/bench_replay.h"
#include "lockstep/commands/bench_report.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/rented_candidates.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;
constexpr int kMachines = 3;
// Fewer iterations predict too badly, whoever is left to beat.
constexpr double kAtLeast = 10;
// Whoever is stopped before that is not measured to the end.
constexpr int kRehearse = 8;

struct BenchOptions {
  std::vector<std::string> words;  // JOB.yaml key=value ...
  std::string replay;
  std::vector<std::string> candidates;
  std::optional<std::string> budget;
  std::string out, patience = "10m";
  std::vector<std::string> envs;
  std::string container, workdir;
  std::optional<int> procs, iterations;
  std::optional<double> total_steps;
  bool explain = false, yes = false;
};

// A replay measures nothing: what says how to measure is a mistake.
Result<void> check_replay_alone(const BenchOptions& options) {
  const bool measures = !options.words.empty() || !options.candidates.empty() ||
                        options.budget || !options.out.empty() ||
                        options.iterations || options.total_steps ||
                        options.explain;
  if (measures) {
    return Error(
        ErrorCode::kInvalidInput,
        "--replay FILE.csv measures nothing: give it without a job and "
        "without the options of a probe; accepted beside it: --output");
  }
  if (std::error_code ignored; fs::is_directory(options.replay, ignored)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "--replay '{}' is a folder; give a CSV file", options.replay));
  }
  return {};
}

Result<int> replay_file(const BenchOptions& options, const Context& context) {
  LOCKSTEP_TRY(check_replay_alone(options));
  LOCKSTEP_ASSIGN(
      const std::string text, os::real_files().read(options.replay));
  LOCKSTEP_ASSIGN(
      const RecordedRuns recorded, parse_recorded_runs(text, options.replay));
  for (const std::string& line : recorded.left_out) {
    log_warning("left out: " + line);
  }
  const economics::ReplayScore score = economics::replay(recorded.runs);
  for (const std::string& name : score.left_out) {
    log_warning("left out: " + name + ": no run of it has a stage");
  }
  if (score.experiments == 0) {
    return Error(
        ErrorCode::kInvalidInput,
        options.replay + ": no run has a stage (pi2_ms, pi2_5_mean_ms, ...)");
  }
  switch (context.format()) {
    case OutputFormat::kTable:
      std::fputs(replay_text(score).c_str(), stdout);
      break;
    case OutputFormat::kJson:
    case OutputFormat::kQuiet:
      std::puts(replay_json(score).c_str());
      break;
  }
  std::fflush(stdout);
  return 0;
}

Result<economics::RaceOptions> race_options(
    const BenchOptions& options,
    const launch::Job& job,
    const std::vector<Candidate>& candidates) {
  economics::RaceOptions race;
  // Real probes have a cap in dollars: a share of the iterations alone would
  // say little beside boot and set-up.
  race.cap_share = 1e9;
  if (options.iterations) {
    const double most = *options.iterations;
    std::erase_if(race.stages, [&](double stage) { return stage >= most; });
    race.stages.push_back(most);
  }
  // One alone is measured for its own sake.
  race.at_least = candidates.size() == 1
                      ? race.stages.back()
                      : std::min(kAtLeast, race.stages.back());
  std::optional<Money> cap = job.budget;
  if (options.budget) {
    LOCKSTEP_ASSIGN(cap, parse_money(*options.budget).with_context("--budget"));
  }
  if (cap) {
    if (!all_priced(candidates)) {
      return Error(
                 ErrorCode::kInvalidInput,
                 "a budget needs the price of every candidate")
          .with_fix("--candidates a=0.40,b=0.20 (dollars an hour and node)");
    }
    race.cap_dollars = cap->dollars();
  }
  return race;
}

std::string bench_id(const std::string& name) {
  return make_run_id(
      name, static_cast<int64_t>(os::real_clock().unix_seconds()));
}

void print_bench(
    const BenchReport& report,
    const BenchOptions& options,
    OutputFormat format) {
  switch (format) {
    case OutputFormat::kTable:
      std::fputs(bench_text(report).c_str(), stdout);
      if (options.explain) {
        fmt::print("\n{}", explain_text(report));
      }
      break;
    case OutputFormat::kJson: {
      nlohmann::json result = bench_json(report);
      if (options.explain) {
        result["explain"] = explain_text(report);
      }
      std::puts(
          result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              .c_str());
      break;
    }
    case OutputFormat::kQuiet:
      fmt::print("{}\n", report.folder.string());
      break;
  }
  std::fflush(stdout);
}

// The native trainer can do an epoch's end (validation, checkpoint) within the
// first iterations, so that the prediction knows what one takes.
bool can_rehearse(const launch::Job& job) {
  const config::Node* recipe = job.train.find("recipe");
  return recipe != nullptr && recipe->text() != "forest";
}

Result<int> run_bench(const BenchOptions& options, const Context& context) {
  if (context.has_program || options.words.empty()) {
    return Error(ErrorCode::kInvalidInput, "nothing to measure")
        .with_fix(
            "lockstep bench JOB.yaml --candidates a=0.40,b=0.20, or lockstep "
            "bench --replay runs.csv");
  }
  // Before any thread is there.
  launch::StopSignals signals;
  const std::string& file = options.words.front();
  const std::vector<std::string> overrides(
      options.words.begin() + 1, options.words.end());
  LOCKSTEP_ASSIGN(
      const launch::Job job,
      launch::load_job(file, overrides, os::environment()));
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  std::vector<std::string> names = options.candidates;
  if (names.empty()) {
    names = job.resources.candidates;
  }
  if (names.empty()) {
    names = job.optimise.candidates;
  }
  if (names.empty()) {
    names = {
        job.resources.instance_type.empty() ? "local"
                                            : job.resources.instance_type};
  }
  const bool is_rented = !job.resources.cloud.empty();
  LOCKSTEP_ASSIGN(
      const auto candidates,
      is_rented ? rented_candidates(names, job, settings)
                : host_candidates(names, job, settings));
  BenchRunnerOptions runner;
  runner.program = own_program();
  runner.words = options.words;
  if (can_rehearse(job)) {
    runner.words.push_back(
        fmt::format(
            "trainer.rehearse={}",
            std::clamp(
                options.iterations.value_or(kRehearse + 1) - 1, 1, kRehearse)));
  }
  runner.quiet = context.format() == OutputFormat::kQuiet;
  LOCKSTEP_ASSIGN(
      runner.patience,
      parse_duration(options.patience).with_context("--patience"));
  LOCKSTEP_ASSIGN(runner.race, race_options(options, job, candidates->list()));
  if (is_rented) {
    std::fputs(offers_text(candidates->list()).c_str(), stderr);
    LOCKSTEP_ASSIGN(const bool is_wanted, may_proceed(options.yes));
    if (!is_wanted) {
      std::fputs("nothing was made\n", stderr);
      return 0;
    }
    if (runner.race.cap_dollars) {  // also when nobody watches any more
      runner.passed.push_back(
          fmt::format("budget={:.9f}", *runner.race.cap_dollars));
    }
  }
  const auto pass = [&](const char* option, const std::string& value) {
    if (!value.empty()) {
      runner.passed.insert(runner.passed.end(), {option, value});
    }
  };
  pass("--procs", options.procs ? std::to_string(*options.procs) : "");
  pass("--container", options.container);
  pass("--workdir", options.workdir);
  for (const std::string& variable : options.envs) {
    pass("--env", variable);
  }
  runner.folder =
      fs::absolute(
          options.out.empty() ? os::Path("benches") / bench_id(job.name)
                              : os::Path(options.out))
          .lexically_normal();
  LOCKSTEP_ASSIGN(
      BenchOutcome outcome, run_probes(*candidates, runner, signals));
  const BenchReport report = make_bench_report(
      job.name, std::move(outcome.probes), options.total_steps, runner.folder);
  LOCKSTEP_TRY(write_bench_files(report));
  print_bench(report, options, context.format());
  if (outcome.interrupted) {
    return kInterrupted;
  }
  return report.cheapest ? 0 : kMachines;
}

Result<int> bench(const BenchOptions& options, const Context& context) {
  if (options.replay.empty()) {
    return run_bench(options, context);
  }
  if (!options.words.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}': --replay takes no job: recorded runs are all it reads",
            options.words.front()));
  }
  return replay_file(options, context);
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "bench", "a few iterations on each candidate; samples per dollar");
  verb->footer(
      "A candidate is a host (a), several together (a+b), or this machine\n"
      "(local), maybe with its price an hour and node; with resources.cloud\n"
      "in the job a machine type, rented for its probe. Losers stop early.\n\n"
      "Examples:\n"
      "  lockstep bench JOB.yaml --candidates a=0.40,b=0.20,local=0.10\n"
      "  lockstep bench --replay runs.csv      recorded runs, same decisions");
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  verb->add_option("job", o.words, "job file, then key=value to set")
      ->type_name("JOB.yaml key=value");
  verb->add_option("--candidates", o.candidates, "what to compare")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("a=USD,b,a+b");
  verb->add_option("--replay", o.replay, "recorded runs instead of machines")
      ->type_name("FILE.csv");
  verb->add_flag("--explain", o.explain, "the arithmetic of every figure");
  verb->add_option("--budget", o.budget, "most dollars over all probes")
      ->type_name("USD");
  verb->add_option("--iterations", o.iterations, "most of a probe; default 64")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  verb->add_option(
          "--total-steps",
          o.total_steps,
          "iterations of the whole run, when the program does not tell")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  verb->add_option(
          "--patience", o.patience, "for a first iteration; default 10m")
      ->type_name("D");
  verb->add_option("--out", o.out, "folder; default: benches/NAME-ID")
      ->type_name("DIR");
  verb->add_option(
          "--procs,--nproc-per-node,--nproc_per_node", o.procs, "ranks a node")
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  verb->add_option("--container", o.container, "image for the ranks")
      ->type_name("I");
  verb->add_option("--env", o.envs, "variable for the ranks")
      ->type_name("K=V")
      ->allow_extra_args(false);
  verb->add_option("--workdir", o.workdir, "folder the ranks start in")
      ->type_name("DIR");
  verb->add_flag("-y,--yes", o.yes, "do not ask");
  set_action(*verb, context, [&context, options]() {
    return bench(*options, context);
  });
}

}  // namespace lockstep::commands
