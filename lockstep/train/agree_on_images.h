#pragma once

// Images that are no good count for a whole data set, but a rank meets those of
// its part alone. All ranks together: what one of them passed over is passed
// over by all, and DataError is thrown on all where that is too many.

#include <memory>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/data/dataset.h"

namespace lockstep::train {

// The same sets in the same order on all ranks; null ones are left out.
using Datasets = std::vector<std::shared_ptr<const data::Dataset>>;

void agree_on_images(const Datasets& datasets, collective::Communicator& group);

}  // namespace lockstep::train
