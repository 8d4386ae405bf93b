#pragma once

// A Connection over a socket of the kernel, and the wait that all calls with a
// deadline share. Internal to os.

#include <memory>
#include <string>

#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/socket.h"

namespace lockstep::os {

// True when the descriptor is ready for the events of poll; false when the
// deadline passed.
bool wait_ready(int descriptor, short events, Deadline deadline);

// `descriptor` does not block; `peer` names the other side in messages.
std::unique_ptr<Connection> make_connection(
    Descriptor descriptor,
    std::string peer);

}  // namespace lockstep::os
