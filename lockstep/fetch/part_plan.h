#pragma once

// How a large object is cut into parts: all alike but the last. Internal to
// fetch; pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::fetch {

struct PartPlan {
  uint64_t size = 0;       // of all
  uint64_t part_size = 1;  // at least 1

  size_t count() const { return (size + part_size - 1) / part_size; }
  uint64_t offset_of(size_t index) const { return index * part_size; }
  uint64_t size_of(size_t index) const {
    return std::min(part_size, size - offset_of(index));
  }
};

}  // namespace lockstep::fetch
