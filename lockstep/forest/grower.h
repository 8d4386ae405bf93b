#pragma once

// Grows a tree, or the part of one below a node, from rows that are all here.
// One owner, one thread; keeps its buffers between trees. What it grows is a
// function of the rows as a set, the key and the options.

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/forest/options.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

class Grower {
 public:
  static std::unique_ptr<Grower>
  make(const Target& target, const FitOptions& options, size_t num_features);
  virtual ~Grower() = default;

  // `rows` are those of `block` with a count above 0; their order is changed.
  // `depth` is that of the node they belong to, `key` its key.
  virtual Tree grow(
      const Block& block,
      std::span<uint32_t> rows,
      uint64_t key,
      int depth) = 0;
};

// How many features a node looks at, from the options.
size_t features_per_split(const FitOptions& options, size_t num_features);

}  // namespace lockstep::forest
