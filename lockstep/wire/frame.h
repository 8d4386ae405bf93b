#pragma once

// Messages on a stream: u32 little-endian length, then that many bytes. A
// length over the limit is refused before anything is allocated.

#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/socket.h"

namespace lockstep::wire {

inline constexpr size_t kMaxFrame = 16 << 20;

Result<void> write_frame(
    os::Connection& connection,
    std::string_view payload,
    os::Deadline deadline);
Result<std::string> read_frame(
    os::Connection& connection,
    os::Deadline deadline,
    size_t limit = kMaxFrame);

}  // namespace lockstep::wire
