#pragma once

// One tree laid out for prediction. Rows of a block pass its first levels 64 at
// once and go on a few at a time, so that their cache misses overlap. Splits
// come first, level by level, and leaves last; leaves of equal value, of which
// there are many, share it. Thread-safe once made.

#include <cstdint>
#include <vector>

#include "lockstep/forest/bin_block.h"
#include "lockstep/forest/top_levels.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

class TreeWalk {
 public:
  // `value_width`: floats a leaf.
  TreeWalk(const Tree& tree, size_t num_features, size_t value_width);

  TreeWalk() = default;
  // Where the value of each row's leaf lies: values() + place * value_width.
  // `places` has room for the block's rows up to a whole tile. Meanwhile asks
  // for the memory of `next`, the tree to follow.
  void walk(const BinBlock& block, const TreeWalk& next, uint32_t* places)
      const;
  const float* values() const { return values_.data(); }

 private:
  // One of the `parts` parts of what a walk reads.
  void prefetch(size_t part, size_t parts) const;

  // A leaf points at itself and sends every row left, so that a walk is a
  // fixed number of steps without a branch. Four bytes where they do: a tree
  // then stays in the core's cache.
  struct Short {
    uint8_t feature;
    uint8_t bin;
    uint16_t left;
  };
  struct Long {
    uint32_t feature;
    uint32_t bin;
    uint32_t left;
  };
  TopLevels top_;
  std::vector<uint32_t> starts_;    // the node at each place below the top
  std::vector<Short> short_steps_;  // one of them
  std::vector<Long> long_steps_;
  int levels_ = 0;  // below the top
  uint32_t first_leaf_ = 0;
  // Of each leaf from first_leaf_ on; the shorter one with short steps.
  std::vector<uint16_t> short_places_;
  std::vector<uint32_t> long_places_;
  std::vector<float> values_;
};

}  // namespace lockstep::forest
