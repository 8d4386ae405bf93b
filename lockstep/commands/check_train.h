#pragma once

// Asks lockstep-train about a job's `train` section before anything starts: a
// mistyped key costs a fraction of a second, not a run directory and a rank's
// log to read. Says nothing about what only a rank can see (data, GPUs).

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::commands {

// Fails with kInvalidInput and the trainer's own words, each with the job
// file's line instead of the argument that the line became. A job without
// `train` passes; so does one whose trainer cannot run here at all, since the
// run itself tells that better. More ranks on a node than the trainer's group
// joins there are refused.
Result<void> check_train(
    const launch::Job& job,
    const os::Path& trainer,
    const launch::RankPlan& plan);
// The same of nodes that are not there yet, `procs` ranks on each.
Result<void> check_train(
    const launch::Job& job,
    const os::Path& trainer,
    int nodes,
    int procs);

// `text` with every "command line 'optim.lr=x'" that a key of `train` became
// replaced by where that key stands.
std::string with_places(std::string text, const config::Node& train);

}  // namespace lockstep::commands
