#pragma once

// `lockstep uploader`: stores a run directory under `outputs` while ranks
// write it (launch/companion.h starts it, on the machine that has the
// directory). Checkpoints go as soon as they stand still, other files every
// few seconds, one at a time. It runs only when nobody else wants the
// processor and the disk. An object is replaced whole or not at all; a file
// that changes under its hands is stored later. Failures are told in its log
// and tried again; nothing else depends on them.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {

// Who may see the orders on their way.
enum class Keys {
  kSent,  // ours go along: standard input and ssh alone carry them
  kOwn,   // the far machine has a role of its own
};

// One line for launch::Companion; empty: the job stores nothing.
Result<std::string> uploader_orders(
    const launch::Job& job,
    const record::RunDirectory& run,
    Keys keys);

// Reads the directory and the orders, a line each; at the end of its standard
// input it stores what is left and ends. 0, 1 when something is missing there.
int uploader_main();

}  // namespace lockstep::commands
