#pragma once

// Predictions of a forest. Rows are binned once and then walk each tree a few
// at a time, so that their cache misses overlap. The sum over trees runs in
// the order of the trees: the same on any number of threads. Thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/forest/random.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

class Predictor {
 public:
  explicit Predictor(const Forest& forest);  // keeps a reference

  // Whole rows of numbers; value_width floats a row: the mean share of each
  // class, or the mean value.
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
  // A leaf points at itself and sends every row left, so that a walk is a
  // fixed number of steps without a branch. Four bytes where they do: a tree
  // then stays in the core's cache.
  struct Short {
    uint8_t feature;
    uint8_t bin;
    uint16_t left;
  };
  struct Long {
    uint16_t feature;
    uint16_t bin;
    uint32_t left;
  };
  struct Walk {
    std::vector<Short> short_steps;  // one of them
    std::vector<Long> long_steps;
    std::vector<uint32_t> values;  // by node: the value of a leaf
    int depth = 0;
  };
  // The value of each row's leaf.
  void walk(const uint8_t* bins, size_t rows, size_t tree, uint32_t* values)
      const;

  const Forest& forest_;
  std::vector<Walk> walks_;
};

// The class with the largest share, the first of equals.
std::vector<int32_t> classes_of(std::span<const float> shares, int classes);

}  // namespace lockstep::forest
