#pragma once

// What ranks must have in common before they train or test together: a launcher
// starts them alike, but people type a line on each host, and folders are
// copied to some. All ranks together; TrainError on all of them otherwise.

#include <string>

#include "lockstep/collective/communicator.h"
#include "lockstep/train/agree_on_images.h"

namespace lockstep::recipes {

// `config`: resolved, as YAML. Paths, loader threads and what only concerns the
// rank itself may differ.
void check_same_config(
    const std::string& config,
    collective::Communicator& group);

// Sizes, classes and labels of the data.
void check_same_data(
    const train::Datasets& datasets,
    collective::Communicator& group);

}  // namespace lockstep::recipes
