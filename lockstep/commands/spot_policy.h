#pragma once

// Where a machine in place of one that was taken away is looked for: elsewhere
// on the spot market first (another zone, another type), then where it was;
// on demand (`use_spot: auto`) only after a wait. Pure.

#include <string>

#include "lockstep/fleet/plan.h"

namespace lockstep::commands {

struct TakenPlace {
  std::string type;
  std::string zone;
};

// 2 minutes; LOCKSTEP_SPOT_WAIT says otherwise.
Duration spot_wait();
// How long a run waits for a machine before it goes on with the nodes that are
// left: 5 minutes; LOCKSTEP_REPLACEMENT says otherwise.
Duration replacement_time();

// Orders the places of the plan's groups of spot machines. `may_pay`: the wait
// is over.
void prefer_elsewhere(
    fleet::Plan& plan,
    const fleet::Cluster& cluster,
    const TakenPlace& taken,
    bool may_pay);

}  // namespace lockstep::commands
