#pragma once

// The best split of a node so far: left are the bins up to `bin`. A plain
// value.

#include <cstdint>
#include <limits>

namespace lockstep::forest {

struct Split {
  int feature = -1;
  uint32_t bin = 0;
  double score = -std::numeric_limits<double>::infinity();
};

}  // namespace lockstep::forest
