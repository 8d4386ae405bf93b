#pragma once

// Grows the trees of a forest on all ranks of a group, with the threads each
// has. Which rank grew what does not show: the same rows, options and seed give
// the same bytes for any number of ranks and threads. Throws CollectiveError.

#include <functional>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/forest/options.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

// Called from any thread whenever this rank has finished a tree or more.
using Progress = std::function<void(size_t trees)>;

// `table` holds this rank's rows; every rank gets all trees.
std::vector<Tree> grow_trees(
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group,
    const Progress& progress = nullptr);

// The rows of all ranks, in order.
BinnedTable gather_table(
    const BinnedTable& table,
    collective::Communicator& group);

// What Exchange::kAuto becomes for this table.
Exchange choose_exchange(
    const BinnedTable& table,
    const FitOptions& options,
    const collective::Communicator& group);

}  // namespace lockstep::forest
