#pragma once

// A Connection over two descriptors: pipes or sockets, as ssh and sshd give
// them. Both are made non-blocking; close() from another thread is not
// supported, everything else as in os/socket.h.

#include <memory>
#include <string>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/socket.h"

namespace lockstep::reach {

// `peer` is for messages. SIGPIPE must be ignored when they are pipes.
std::unique_ptr<os::Connection>
make_stream(os::Descriptor in, os::Descriptor out, std::string peer);

// One descriptor for both ways.
std::unique_ptr<os::Connection> make_stream(
    os::Descriptor both,
    std::string peer);

}  // namespace lockstep::reach
