#pragma once

// Both ends prove that they hold the run's key, and neither reveals it:
// each sends a random challenge and answers the other's with an HMAC-SHA256
// over both challenges, its own role and the purpose. A replay fails because
// challenges are fresh. Fails with kPermission and closes the connection.

#include <string_view>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/os/socket.h"

namespace lockstep::wire {

// `purpose` keeps a connection for one service from being used for another.
Result<void> greet_as_client(
    os::Connection& connection,
    const Key& key,
    std::string_view purpose,
    os::Deadline deadline);
Result<void> greet_as_server(
    os::Connection& connection,
    const Key& key,
    std::string_view purpose,
    os::Deadline deadline);

// The key file that LOCKSTEP_KEY_FILE names: 64 hexadecimal digits, mode 0600.
Result<Key> read_key_file(const std::string& path);
Result<void> write_key_file(const std::string& path, const Key& key);

}  // namespace lockstep::wire
