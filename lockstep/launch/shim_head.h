#pragma once

// The part of a head whose ranks mpirun or srun start: from its orders to a
// group of shims, to the places of their ranks, and back with what rank 0 left
// on another host.

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/shims.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

bool uses_shims(const HeadSpec& spec);

// Slurm decides on the hosts: the one node of the orders stands for each node
// of the allocation.
Result<void> take_allocation(HeadSpec& spec);

// What a job that Slurm queued again left of its earlier starts.
struct EarlierStarts {
  int generations = 0;
  Duration used{};  // while its heads lived, without the time in the queue
};
EarlierStarts earlier_starts(
    const HeadSpec& spec,
    const record::RunDirectory& run);

struct ShimRun {
  std::unique_ptr<ShimStarter> starter;
  std::unique_ptr<ShimGroup> group;
};
// Every rank of the plan has a shim that listens.
Result<ShimRun> start_shims(
    const HeadSpec& spec,
    const RankPlan& plan,
    const os::Path& own_program,
    const record::RunDirectory& run,
    const std::vector<std::string>& own_addresses,
    const std::function<bool()>& interrupted);

// Plan, places and members, completed by what the shims told.
void fill_shim_places(
    const HeadSpec& spec,
    const ShimGroup& group,
    const record::RunDirectory& run,
    RunRequest& request);

// The job's `setup`, once, where the head runs; its output is ranks/setup.log.
// Other hosts were set up before.
Result<void> run_setup_here(
    const HeadSpec& spec,
    const Job& job,
    const record::RunDirectory& run);

// What rank 0 left in its folder on another host (checkpoints, samples,
// metrics) comes into the run directory, and goes from there. Nothing to do
// when it lies here.
Result<void> fetch_outputs(
    const HeadSpec& spec,
    const Job& job,
    const os::Path& own_program,
    const record::RunDirectory& run);

// Slurm's part in the end of a start: whether it queued the job again, or does
// so because we ask for it after the loss of a node or a preemption. Then the
// run has not ended and there is no end to write; else `state` says whether it
// is settled, and an outcome that is Slurm's doing (scancel) says so. False for
// other launchers.
bool goes_on_later(
    Result<RunOutcome>& outcome,
    RunStateFile& state,
    Console& console);

}  // namespace lockstep::launch
