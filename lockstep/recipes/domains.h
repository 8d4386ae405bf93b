#pragma once

// Two domains of one classification task, as Office-31 is laid out:
// <root>/<domain>/<class>/*.jpg (or <domain>/images/<class>), any two of them.
// The classes must be the same. Images that cannot be read, or are tiny, are
// passed over (data/tolerant.h).

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/train/recipe.h"

namespace lockstep::recipes {

struct DomainsConfig : train::DataConfig {
  std::string source;
  std::string target;
  int64_t resize = 0;  // side that crops are cut out of; 0: 8/7 of image_size
  int64_t min_side = 8;
  bool flip = true;
  void bind(config::Binder& b);
  int crop_from() const;
};

struct Domains {
  std::shared_ptr<data::Dataset> source;
  std::shared_ptr<data::Dataset> target;
};

// Throws DataError or TrainError: a domain that is not there (with those that
// are), fewer than two classes, classes that differ between domains or ranks.
// All ranks together.
Domains open_domains(
    const DomainsConfig& config,
    const train::Context& context);

}  // namespace lockstep::recipes
