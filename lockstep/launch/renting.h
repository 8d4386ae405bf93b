#pragma once

// Whose turn it is to rent machines in place of those that were taken away: the
// turn of the `lockstep run` that rented the first ones, or that of the head. A
// file in the run directory on the head (".renting") says it, behind a lock, so
// that both never rent for one node. The client has its turn as long as it is
// heard of; after `away` of silence the head takes it, for good: a client that
// comes back is told so and leaves it to the head. A clock that is set back
// begins the silence anew. Called on the head, from any process and thread.

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// The client is heard of. False: the head rents.
Result<bool> client_rents(
    const record::RunDirectory& run,
    const os::Clock& clock = os::real_clock());

// True: from now on the head rents. The first call begins the silence.
Result<bool> head_rents(
    const record::RunDirectory& run,
    Duration away,
    const os::Clock& clock = os::real_clock());

}  // namespace lockstep::launch
