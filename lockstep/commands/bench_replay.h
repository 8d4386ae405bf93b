#pragma once

// `lockstep bench --replay runs.csv`: recorded runs through the race that also
// stops live probes. Reads the file; decides nothing itself.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/economics/replay.h"

namespace lockstep::commands {

struct RecordedRuns {
  std::vector<economics::RecordedRun> runs;
  std::vector<std::string> left_out;  // row by row: what it lacks
};
// Columns suite, experiment, nodes, usd_per_hour_each, the five stages
// (pi2_ms, pi2_5_mean_ms, pi2_10_mean_ms, first32_mean_ms, first64_mean_ms) and
// the truth (pi_mean_ms, pi_count); others are passed over. An empty stage was
// not recorded; a run without price, nodes or truth is left out. Errors name
// file, row and column.
Result<RecordedRuns> parse_recorded_runs(
    const std::string& text,
    const std::string& source);

std::string replay_text(const economics::ReplayScore& score);
// {experiments, cheapest, fastest, mean_regret, max_regret, probe_cost}.
std::string replay_json(const economics::ReplayScore& score);

}  // namespace lockstep::commands
