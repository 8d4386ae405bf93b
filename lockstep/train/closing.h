#pragma once

// What rank 0 does at the end when no coordinator watched the run: merges the
// ranks' events into events.jsonl, writes timing.csv and the logbook. Failures
// are logged: the training itself is done.

#include <string>
#include <vector>

#include "lockstep/record/run_directory.h"

namespace lockstep::train {

void close_run(
    const record::RunDirectory& run,
    const std::string& recipe,
    const std::vector<std::string>& arguments);

}  // namespace lockstep::train
