#pragma once

// What leaves rented machines for the user's when a run ends: its directory.
// Files that go while they are counted count nothing. Any thread.

#include "lockstep/base/units.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

Bytes run_bytes(const record::RunDirectory& run);
// At the most, should it end soon: best and last are two checkpoints, and
// either may still come.
Bytes leaving_bytes(const record::RunDirectory& run);

}  // namespace lockstep::launch
