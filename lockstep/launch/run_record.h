#pragma once

// What whoever supervises a run writes beside its events: job.yaml and
// state.json when it begins; metrics.csv, logbook.md and the last state.json
// when it has ended. The last state comes after all else, so that a reader who
// sees the end finds everything.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// State "running" by this process, now. Names, command and hosts are the
// caller's to fill.
RunStateFile first_state(
    const record::RunDirectory& run,
    const RunRequest& request);

// job.yaml, and by what its secrets are masked later (masks.h).
Result<void> record_job(const record::RunDirectory& run, const Job& job);
// The same and state.json.
Result<void> begin_record(
    const record::RunDirectory& run,
    const Job& job,
    const RunStateFile& state);

// Everything after the last rank. What cannot be written is logged: it must
// not change how the run ended.
void end_record(
    const record::RunDirectory& run,
    const Job& job,
    const Result<RunOutcome>& outcome,
    RunStateFile& state);

}  // namespace lockstep::launch
