#pragma once

// Decides data.batch_size=auto and trainer.recompute=auto before training
// begins, by trials that leave weights, buffers, generators and optimiser as
// they were; refuses a fixed batch that does not fit, with the largest that
// would. All ranks together.

#include <functional>
#include <vector>

#include "lockstep/train/batch_search.h"
#include "lockstep/train/config.h"
#include "lockstep/train/error.h"
#include "lockstep/train/recipe.h"
#include "lockstep/train/recompute.h"

namespace lockstep::train {

// What a recipe offers to the search.
struct BatchTrial {
  // Forward and backward of n samples, as in a step.
  std::function<void(int64_t)> run{};
  // Empty: the recipe cannot recompute.
  std::function<void(Recompute)> set_recompute{};
  std::vector<at::Tensor> buffers{};  // that a forward changes (BatchNorm)
  int64_t shard = 0;                  // samples of a rank: no batch is larger
  double image_bytes = 0;             // of a sample in the loader
  double device_bytes = 0;  // of a sample on a GPU beside what run() takes
  // Roughly what a sample takes in backward. A fixed batch is tried only when
  // this says that it comes near the limit.
  double estimate = 0;
};

struct FittedBatch {
  Recompute recompute = Recompute::kNone;
  std::string memory;  // "3.1 GiB of 4 GiB"; empty: not measured
};

// Sets data.batch_size where it is auto. Rank 0 prints the size with the
// memory it uses. Throws TrainError.
FittedBatch
fit_batch(DataConfig& data, const Context& context, const BatchTrial& trial);

// For a step that ran out of memory: what to tell the user, with the largest
// batch that this rank finds to fit.
TrainError
batch_failure(int64_t batch, const Context& context, const BatchTrial& trial);

}  // namespace lockstep::train
