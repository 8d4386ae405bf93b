#pragma once

// Growing when no rank may hold all rows. Large nodes: every rank fills the
// histograms of its own rows, the sums of many nodes travel together under the
// memory budget, and all ranks choose the same splits. Nodes of at most
// local_rows drawn rows move whole to one rank, which finishes them.

#include "lockstep/forest/fit.h"

namespace lockstep::forest {

std::vector<Tree> grow_from_histograms(
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group,
    const Progress& progress);

}  // namespace lockstep::forest
