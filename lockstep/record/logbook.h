#pragma once

// logbook.md: what a person would write down about a run, made from the run
// directory alone (events, metrics, job), so that it can be made again at any
// time, also for a run that failed, still goes on, or never began. Plots go
// beside it as SVG. docs/run_directory.md describes the page.

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
  std::string name{};
  std::string command{};                  // that repeats the run
  std::optional<Money> price_per_hour{};  // of all machines together
  std::string price_source{};             // "--price", "user file"
  // As the launcher measured and judged it; else what the events say.
  double started = 0, ended = 0;  // Unix seconds
  std::string ending{};           // "stopped by the budget of $5.00"
  std::string outputs{};          // "s3://bucket/runs/<id>": stored there too
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
  int64_t samples = 0;  // over all ranks
  // Steady state: the first iteration after each start is left out.
  double samples_per_second = 0;
  double iteration_seconds = 0;  // mean over steps and ranks
  struct RankRow {
    int rank = 0;
    std::string node;
    int64_t iterations = 0;
    int64_t samples = 0;
    // Sums over all iterations, in seconds.
    double data = 0, compute = 0, communication = 0, wait = 0, total = 0;
    double peak_resident_bytes = 0, mean_cpu = 0, gpu_memory_bytes = 0;
    double mean_gpu_use = 0;
    std::optional<int> exit_code;  // 128 + number for a signal
    std::string exit_reason;
  };
  std::vector<RankRow> ranks;  // by rank
  std::map<std::string, double> last_metrics;
  std::vector<wire::Checkpoint> checkpoints;
  int64_t skipped_lines = 0;

  enum class Outcome {
    kEmpty,       // no event was written
    kUnfinished,  // goes on, or was killed: some rank wrote no exit
    kFailed,      // a rank ended with another code than 0
    kStopped,     // no rank failed by itself: the launcher ended them
    kFinished,
  };
  Outcome outcome = Outcome::kEmpty;
  std::string failure;  // "rank 1: exit code 3: ...", empty when none
  int starts = 0;       // 1, and one more for each restart
  std::map<std::string, std::string> facts;  // of the first rank's init
  struct MetricRange {
    double last = 0, lowest = 0, highest = 0;
    int64_t last_step = 0, lowest_step = 0, highest_step = 0;
  };
  std::map<std::string, MetricRange> metrics;
  std::optional<wire::Cost> cost;  // the control side's last word
  struct Remark {
    double time = 0;
    std::string text;
  };
  std::vector<Remark> remarks;  // nodes and decisions, in order of time
};
// Reads events.jsonl; where that has no rank's events, ranks/*.jsonl.
Result<RunSummary> summarise(const RunDirectory& run);
std::string_view to_string(RunSummary::Outcome outcome);

// Writes logbook.md and plots/*.svg.
Result<void> write_logbook(const RunDirectory& run, const LogbookInput& input);

}  // namespace lockstep::record
