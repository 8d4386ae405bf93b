#pragma once

// A grown tree and a forest of them. Children of a split lie side by side: left
// is `link`, right is `link` + 1. A leaf's link is the index of its value.
// Nodes are in the order of a walk that goes left first, whoever grew them, so
// that equal trees are equal bytes. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/forest/binning.h"
#include "lockstep/forest/table.h"

namespace lockstep::forest {

inline constexpr int32_t kLeaf = -1;

struct Node {
  int32_t feature = kLeaf;
  uint32_t bin = 0;   // left when the row's bin is not above it
  uint32_t link = 0;  // left child, or the value of a leaf
  float gain = 0;     // fall of impurity, times drawn rows
  bool operator==(const Node&) const = default;
};

struct Tree {
  std::vector<Node> nodes;
  std::vector<float> values;  // value_width floats a leaf
  int depth = 0;
  bool operator==(const Tree&) const = default;
};

struct Forest {
  std::vector<std::string> features;  // names of columns
  Target target;
  Binning binning;
  std::vector<Tree> trees;
  // Floats a leaf: the share of each class, or one value, from target.offset
  // on.
  int value_width() const {
    return target.classes.empty() ? 1 : target.num_classes();
  }
};

// The tree with its nodes in the order of the walk.
Tree in_order(const Tree& tree, int value_width);

// How much each feature lowered impurity; sums to 1 (or all 0).
std::vector<double> importances(const Forest& forest);

}  // namespace lockstep::forest
