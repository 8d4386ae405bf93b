#pragma once

// Predictions of a forest. Rows are binned once and pass the trees in blocks.
// The sum over trees runs in the order of the trees: the same on any number of
// threads. Thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/forest/random.h"
#include "lockstep/forest/tree.h"
#include "lockstep/forest/tree_walk.h"

namespace lockstep::forest {

class Predictor {
 public:
  // Keeps a reference.
  explicit Predictor(const Forest& forest, int threads = 1);

  // Whole rows of numbers; value_width floats a row: the mean share of each
  // class, or the mean value less the target's offset, summed in doubles.
  void predict(std::span<const float> rows, float* values, int threads) const;
  // The same from bins.
  void predict_bins(
      const uint8_t* bins,
      size_t rows,
      float* values,
      int threads) const;
  // Only of the trees that were grown without the row; NaN where none was.
  // `first_row`: the rows' place in the whole table.
  void predict_out_of_bag(
      const uint8_t* bins,
      size_t rows,
      uint64_t first_row,
      std::span<const Draws> draws,
      float* values,
      int threads) const;

 private:
  // Of a block's first `count` rows.
  void mean_numbers(const BinBlock& block, size_t count, float* out) const;
  void mean_shares(const BinBlock& block, size_t count, float* out) const;

  const Forest& forest_;
  std::vector<TreeWalk> walks_;
};

// The class with the largest share, the first of equals.
std::vector<int32_t> classes_of(std::span<const float> shares, int classes);

}  // namespace lockstep::forest
