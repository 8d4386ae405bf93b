#pragma once

// MNIST's format: big-endian magic and sizes, then bytes; plain or gzipped.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// Finds <prefix>-images-idx3-ubyte[.gz] and the labels in one of `folders`;
// the prefix is "train" or "t10k". Null when no folder has them.
std::unique_ptr<Dataset> open_idx(
    const std::vector<std::string>& folders,
    bool train,
    int64_t limit,
    std::vector<std::string> classes);

}  // namespace lockstep::data
