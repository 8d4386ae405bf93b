#pragma once

// Work that a rank's threads take one piece at a time. The first exception is
// thrown to the caller after all have ended.

#include <cstddef>
#include <functional>

namespace lockstep::forest {

// Calls `use(piece, thread)` for every piece below `pieces`, in any order.
void for_pieces(
    size_t pieces,
    int threads,
    const std::function<void(size_t piece, size_t thread)>& use);

}  // namespace lockstep::forest
