#pragma once

// logbook.md: what a person would write down about a run, made from the run
// directory alone (events, metrics, job), so that it can be made again at any
// time. Plots go beside it as SVG.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/record/run_directory.h"
#include "lockstep/wire/event.h"

namespace lockstep::record {

struct LogbookInput {
  std::string name;
  std::string command;                  // that repeats the run
  std::optional<Money> price_per_hour;  // of all machines together
  std::string price_source;             // "--price", "user file"
};

// What the files say about a run; also behind `lockstep report`.
struct RunSummary {
  std::string id;
  std::string program;
  int world_size = 0;
  std::vector<std::string> nodes;
  double start = 0, end = 0;  // Unix seconds
  double init_seconds = 0;    // slowest rank
  int64_t steps = 0;
  int64_t epochs = 0;
  int64_t samples = 0;            // over all ranks
  double samples_per_second = 0;  // steady state: the first step left out
  double iteration_seconds = 0;   // mean over steps and ranks
  struct RankRow {
    int rank = 0;
    std::string node;
    int64_t iterations = 0;
    double data = 0, compute = 0, communication = 0, wait = 0, total = 0;
    double peak_resident_bytes = 0, mean_cpu = 0, gpu_memory_bytes = 0;
    std::optional<int> exit_code;
    std::string exit_reason;
  };
  std::vector<RankRow> ranks;
  std::map<std::string, double> last_metrics;
  std::vector<wire::Checkpoint> checkpoints;
  int64_t skipped_lines = 0;
};
Result<RunSummary> summarise(const RunDirectory& run);

Result<void> write_logbook(const RunDirectory& run, const LogbookInput& input);

}  // namespace lockstep::record
