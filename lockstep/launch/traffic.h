#pragma once

// What leaves rented machines for the user's when a run ends: its directory.
// Files that go while they are counted count nothing. Any thread.

#include "lockstep/base/units.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

Bytes run_bytes(const record::RunDirectory& run);
// Of that, what its checkpoints are.
Bytes checkpoint_bytes(const record::RunDirectory& run);

}  // namespace lockstep::launch
