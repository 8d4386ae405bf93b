#pragma once

// `outputs: s3://bucket/folder`: everything that a run left, stored under
// <folder>/<run id>/.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {

// The address can be one.
Result<void> check_outputs(const launch::Job& job);

// The bucket is there and answers, before anything costs money.
Result<void> reach_outputs(const launch::Job& job);

// "s3://bucket/folder/<run id>"; empty: the job stores nothing.
std::string outputs_of(const launch::Job& job, const record::RunDirectory& run);

// Temporary files, what is hidden and the uploader's own; `relative` to the
// run's directory.
bool is_not_stored(const os::Path& relative);

// All else of the directory; what is there with the same content is left. Says
// where on stderr.
Result<void> store_outputs(
    const launch::Job& job,
    const record::RunDirectory& run);

}  // namespace lockstep::commands
