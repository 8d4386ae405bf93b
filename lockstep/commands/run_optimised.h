#pragma once

// `lockstep run` of a job with `optimise:` on rented machines: it begins on a
// mixed cluster, sees each node's own compute time in the events, decides every
// period (economics/optimise.h) and carries decisions out through the fleet.
//
// The run is a row of sittings, each a `lockstep run` of its own on the nodes
// that there are. A change first rents what is new, while training goes on;
// then the sitting is stopped, which leaves a checkpoint, what is not wanted is
// given back, and the next sitting goes on from that checkpoint. (Re-forming
// the group in memory would take the place of stop and start in Sittings, and
// of nothing else.) Files of sittings are below sittings/ of the run; events,
// metrics and checkpoints of all of them are the run's. Machines go back in
// every ending.

#include "lockstep/commands/run_kinds.h"

namespace lockstep::commands {

// Whether the job asks for it.
bool is_optimised(const launch::Job& job);

// Refuses what it cannot know: programs that do not show their wait, a batch
// that would change with the number of nodes.
Result<int> run_optimised(const RunOrder& order);

}  // namespace lockstep::commands
