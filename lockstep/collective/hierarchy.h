#pragma once

// The host communicator over several hosts: ranks of a host reduce into the
// memory of their first, the first ranks exchange over TCP, and each host
// spreads the result, piece by piece, so that the three overlap. Asynchronous
// operations run on a thread of the communicator.

#include <memory>

#include "lockstep/collective/host_group.h"

namespace lockstep::collective {

std::unique_ptr<Communicator> make_hierarchy(std::shared_ptr<HostGroup> group);

}  // namespace lockstep::collective
