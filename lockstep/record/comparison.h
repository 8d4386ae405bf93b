#pragma once

// One logbook over several runs of the same task: what differs between them
// side by side (validation, time, samples a second, largest batch, memory, GPU
// use, cost, where TensorBoard's files and the best checkpoint are), the table
// of processors that nvidia-smi would show, and their curves in common
// pictures. Made from the run directories alone, so that it can be made again;
// a run that failed has its column too.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::record {

struct ComparedRun {
  std::string name;                 // of the variant: "ddp"
  std::optional<RunDirectory> run;  // none: it never began
  std::string state;                // as the launcher judged it: "done"
  double seconds = 0;               // as the launcher measured; 0: by events
  std::optional<Money> cost{};
};

struct ComparisonInput {
  std::string name;
  std::string command;  // that repeats it
  std::vector<ComparedRun> runs;
};

// Writes logbook.md, comparison.csv and plots/*.svg into `folder`, which is
// made. Paths of runs are given relative to it.
Result<void> write_comparison(
    const os::Path& folder,
    const ComparisonInput& input);

}  // namespace lockstep::record
