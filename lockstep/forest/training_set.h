#pragma once

// Loaded rows made ready for growing: what the label is, the edges of the bins
// and this rank's rows as bins. All ranks call together; the edges come from
// the same sample whatever their number. Throws CollectiveError.

#include "lockstep/collective/communicator.h"
#include "lockstep/forest/load.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

struct TrainingSet {
  Forest forest;  // without trees
  BinnedTable table;
};

// Takes the rows' memory. kInvalidInput: fewer than two rows, or labels that
// are all the same.
Result<TrainingSet> make_training_set(
    LoadedRows rows,
    size_t max_bins,
    int threads,
    collective::Communicator& group);

// Weights that make each class count the same: rows / (classes x its rows).
std::vector<double> balanced_weights(
    const BinnedTable& table,
    int num_classes,
    collective::Communicator& group);

}  // namespace lockstep::forest
