#pragma once

// The results of a sweep: speed-up and efficiency of each configuration with
// their confidence intervals, and the files and texts that show them. Pure:
// everything is made from the journal's repeats. Only repeats that went well
// are in a mean.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/commands/sweep_journal.h"
#include "lockstep/commands/sweep_plan.h"
#include "lockstep/economics/statistics.h"

namespace lockstep::commands {

struct SweepPoint {
  Configuration configuration;
  std::vector<Repeat> repeats;  // that went well
  size_t failures = 0;
  economics::Moments total;    // seconds by the launcher
  economics::Moments epoch;    // seconds of the slowest rank's epoch 0
  economics::Moments speed;    // samples a second of all ranks; maybe none
  std::optional<double> ci95;  // half of the interval of the mean total
  // Work done, against the baseline: 1 when a data set is passed over, as many
  // as ranks when each does a fixed number of steps.
  double work = 1;
  // (baseline mean / mean) x work; none while either is unknown.
  std::optional<double> speedup;
  std::optional<economics::Interval> speedup_interval;
  std::optional<double> efficiency;  // speed-up / ranks
};

struct SweepTable {
  std::string name;
  Scaling scaling = Scaling::kWeak;
  int repeat = 0;       // wanted
  std::string command;  // that goes on with it
  std::vector<SweepPoint> points;
  std::vector<Repeat> failures;
  double dollars = 0;
};

SweepTable make_sweep_table(
    const std::vector<Configuration>& grid,
    const SweepJournal& journal);

// "total,t0,t1,..." and a line a repeat.
std::string repeats_csv(const SweepPoint& point);
// nodes, procs, batch_size, mean, ci95, speedup, efficiency, then a column for
// each further key. An unknown number is an empty cell.
std::string speedup_csv(const SweepTable& table);
std::string failures_csv(const SweepTable& table);
// Speed-up by ranks, one line for each node count, batch size and choice of
// keys; the ideal; bars for the intervals.
std::string speedup_svg(const SweepTable& table);
std::string summary_markdown(const SweepTable& table);
std::string sweep_text(const SweepTable& table);
nlohmann::json sweep_json(const SweepTable& table);

// All files above, in the journal's folder, each replaced whole.
Result<void> write_sweep_files(const SweepTable& table, const os::Path& folder);

}  // namespace lockstep::commands
