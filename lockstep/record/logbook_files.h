#pragma once

// The parts of the logbook that tell of files: checkpoints, sample pictures and
// what else is in the run directory, as Markdown. Private to record/.

#include <string>

#include "lockstep/record/logbook.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::record {

// Empty for a program that does not say what it stores.
std::string checkpoints_section(
    const RunDirectory& run,
    const RunSummary& summary);
// The last picture of each kind: names that differ only in their numbers are
// one kind. Empty without pictures.
std::string samples_section(const RunDirectory& run);
// `outputs`: where all of it is stored besides; may be empty.
std::string files_section(const RunDirectory& run, const std::string& outputs);

}  // namespace lockstep::record
