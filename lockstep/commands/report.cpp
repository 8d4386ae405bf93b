#include "lockstep/commands/report.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/commands/costs.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

os::Path newest_picture(const os::Path& folder) {
  os::Path newest;
  fs::file_time_type time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const auto written = entry.last_write_time(gone);
    if (entry.path().extension() != ".png" || gone) {
      continue;
    }
    // Two in one tick of the clock: the later name.
    if (newest.empty() || written > time ||
        (written == time && entry.path() > newest)) {
      newest = entry.path();
      time = written;
    }
  }
  return newest;
}

}  // namespace

std::string Report::state_name() const {
  return state ? state->state : std::string(to_string(summary.outcome));
}

Result<Report> make_report(
    const record::RunDirectory& run,
    const launch::RunStateFile* known) {
  Report report;
  LOCKSTEP_ASSIGN(report.summary, record::summarise(run));
  if (known != nullptr) {
    report.state = *known;
  } else {
    LOCKSTEP_ASSIGN(report.state, launch::read_run_state(run));
    if (report.state) {
      report.state = with_machines(*report.state);
    }
  }
  if (report.summary.program.empty() && report.state) {
    report.summary.program = report.state->program;
  }
  report.directory = run.path();
  report.picture = newest_picture(run.samples());
  if (os::real_files().exists(run.logbook())) {
    report.logbook = run.logbook();
  }
  report.seconds = report.summary.end - report.summary.start;
  if (report.state && !report.state->head_directory.empty()) {
    // This directory is a mirror: name the files that are here.
    const std::string& there = report.state->head_directory;
    for (auto& checkpoint : report.summary.checkpoints) {
      if (checkpoint.path.starts_with(there + "/")) {
        checkpoint.path.replace(0, there.size(), run.path().string());
      }
    }
  }
  if (report.state) {
    const double end = report.state->ended > 0
                           ? report.state->ended
                           : os::real_clock().unix_seconds();
    if (report.state->ended > 0 || report.state->state == "running") {
      report.seconds = end - report.state->started;
    }
    report.cost = cost_of(*report.state, run);
  }
  return report;
}

void print_report(const Report& report, OutputFormat format) {
  std::string text;
  switch (format) {
    case OutputFormat::kTable:
      text = report_text(report);
      break;
    case OutputFormat::kJson:
      text = report_json(report).dump(
                 2, ' ', false, json::error_handler_t::replace) +
             "\n";
      break;
    case OutputFormat::kQuiet:
      text = report.directory.string() + "\n";
      break;
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void add_report(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("report", "how a run went");
  verb->footer("Example: lockstep report last --output json");
  auto name = std::make_shared<std::string>("last");
  verb->add_option("run", *name, "id, the start of one, or 'last'")
      ->type_name("RUN");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, name]() -> Result<int> {
    LOCKSTEP_ASSIGN(const Settings settings, context.settings());
    LOCKSTEP_ASSIGN(const auto run, find_run(settings, *name));
    LOCKSTEP_ASSIGN(const Report report, make_report(run));
    print_report(report, context.format());
    return 0;
  });
}

}  // namespace lockstep::commands
