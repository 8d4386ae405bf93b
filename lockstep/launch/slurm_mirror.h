#pragma once

// A run of Slurm as whoever watches it sees it: its directory lies on the
// shared file system, so nothing is fetched; Slurm itself says whether the job
// still waits, runs, or went without a word. One that is queued again goes on.

#include <memory>
#include <string>

#include "lockstep/launch/follow.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

std::unique_ptr<Mirror> open_slurm_mirror(
    const record::RunDirectory& run,
    RunStateFile state);

// `state` with what Slurm says about a job that has not ended by its own word:
// "queued" with the reason, or "lost".
RunStateFile with_slurm(const record::RunDirectory& run, RunStateFile state);

// Until the head runs, only slurm/job_id knows it. Empty: nobody does.
std::string slurm_job_id(
    const record::RunDirectory& run,
    const RunStateFile& state);

}  // namespace lockstep::launch
