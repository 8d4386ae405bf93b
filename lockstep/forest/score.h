#pragma once

// How good a forest is on rows: the share of right classes and who was taken
// for whom, or the squared error. Sums over all ranks; each call is made by
// all. Throws CollectiveError.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/forest/options.h"
#include "lockstep/forest/predict.h"
#include "lockstep/record/confusion.h"

namespace lockstep::forest {

struct Score {
  int64_t rows = 0;
  double accuracy = 0;            // classes
  double r2 = 0;                  // numbers: share of the variance explained
  double seconds = 0;             // to predict the rows here, where timed
  double rmse = 0;                // numbers: root of the mean squared error
  record::Confusion confusion{};  // classes
};

// `values`: what a Predictor gave; a NaN is a row nobody could judge. Numbers
// are counted from the target's offset, and so is their truth.
Score score_classes(
    std::span<const float> values,
    std::span<const int32_t> truth,
    const Target& target,
    collective::Communicator& group);
Score score_numbers(
    std::span<const float> values,
    std::span<const double> truth,
    collective::Communicator& group);

// This rank's rows as they were trained on.
Score training_score(
    const Predictor& predictor,
    const BinnedTable& table,
    const Target& target,
    int threads,
    collective::Communicator& group);
// Each row by the trees that were grown without it.
Score out_of_bag_score(
    const Predictor& predictor,
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group);

}  // namespace lockstep::forest
