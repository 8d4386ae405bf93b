#pragma once

// Nodes that are small enough for one rank: their rows travel there, many
// nodes together under the memory budget, and what is grown below them travels
// back to all. Throws CollectiveError.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/forest/options.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

struct SmallNode {
  size_t tree = 0;
  uint32_t slot = 0;
  uint64_t key = 0;
  int depth = 0;
  uint64_t drawn = 0;  // over all ranks
  // Here: rows of the table, and how often each row of the table is drawn.
  std::span<const uint32_t> rows{};
  const uint8_t* counts = nullptr;
};

// The tree below each node, on every rank. `nodes` are the same on all ranks
// but for their rows.
std::vector<Tree> finish_small_nodes(
    std::span<const SmallNode> nodes,
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group);

}  // namespace lockstep::forest
