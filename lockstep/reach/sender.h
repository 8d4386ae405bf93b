#pragma once

// Sends the contents of files in compressed pieces, many under way at once.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/session.h"

namespace lockstep::reach {

struct Blob {
  os::Path source;
  std::string hash;
  uint64_t size = 0;
};

// `keep`: they become blobs there, else they wait for the sync that follows.
// kAborted with a retry: a file changed meanwhile.
Result<void>
send_blobs(Session& session, const std::vector<Blob>& blobs, bool keep);

// kUnavailable when `free` bytes there do not suffice for all.
Result<void> check_room(
    const Session& session,
    const std::vector<Blob>& blobs,
    uint64_t free);

}  // namespace lockstep::reach
