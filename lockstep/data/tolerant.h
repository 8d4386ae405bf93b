#pragma once

// A data set of which some images are no good: unreadable ones, and ones that
// are too small. Each is named in the log once and replaced, image and label,
// by the next good one; the choice depends on the files alone, so ranks, epochs
// and resumed runs agree. More than the allowed share of them throws DataError.
// Images are looked at when they are read, so opening stays fast; what ranks
// find, each in its part, is joined by train::agree_on_images(). Any thread.

#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct TolerantOptions {
  double share = .1;   // of the images that may be passed over, 0 to 1
  int min_height = 1;  // smaller ones count as no good
  int min_width = 1;
};

std::unique_ptr<Dataset> tolerate(
    std::shared_ptr<const Dataset> dataset,
    const TolerantOptions& options);

}  // namespace lockstep::data
