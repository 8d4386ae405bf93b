#pragma once

// Images made from seed and index: a wave whose direction, length and colours
// belong to the class, at a random place, with noise. A classifier can learn
// it; no file is needed. The two splits differ.

#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

std::unique_ptr<Dataset> make_synthetic(const DatasetOptions& options);

}  // namespace lockstep::data
