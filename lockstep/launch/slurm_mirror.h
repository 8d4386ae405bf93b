#pragma once

// A run of Slurm as whoever watches it sees it: its directory lies on the
// shared file system, so nothing is fetched. The head's last word in state.json
// is not the end when Slurm queued the job again: it may end a head (SIGTERM,
// SIGKILL, a lost node) only to start the next one. So Slurm is asked, after
// the file was read, and its count of restarts told apart from the head's.

#include <memory>
#include <optional>
#include <string>

#include "lockstep/launch/follow.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/slurm.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

std::unique_ptr<Mirror> open_slurm_mirror(
    const record::RunDirectory& run,
    RunStateFile state);

// What is true of a run by its head's last word and by what Slurm said after
// that was read: "queued" with the reason, "running", "lost" or "stopped" when
// the job ended without a word of its head, or the head's word. Pure.
RunStateFile slurm_view(
    RunStateFile written,
    const std::optional<SlurmState>& told);

// `state` as slurm_view sees it now; of other launchers as it is.
RunStateFile with_slurm(const record::RunDirectory& run, RunStateFile state);

// Until the head runs, only slurm/job_id knows it. Empty: nobody does.
std::string slurm_job_id(
    const record::RunDirectory& run,
    const RunStateFile& state);

}  // namespace lockstep::launch
