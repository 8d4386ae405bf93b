#pragma once

// Trees of classes: what a histogram counts and how a split is judged by it.
// A cell is an integer, so that sums do not depend on order. One owner, one
// thread: it keeps what it sums. Header-only because growing a tree is these
// loops.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/forest/class_score.h"
#include "lockstep/forest/options.h"
#include "lockstep/forest/split.h"

namespace lockstep::forest {

template <bool kEntropy, bool kWeighted>
class ClassTask {
 public:
  using Cell = uint32_t;
  static constexpr bool kPackable = true;
  ClassTask(int num_classes, const FitOptions& options)
      : classes_(static_cast<size_t>(num_classes)),
        min_leaf_(static_cast<uint64_t>(options.min_leaf)),
        score_(whole_fours(options.class_weights, classes_)),
        left_((classes_ + 3) / 4 * 4),
        right_(left_.size()) {}

  size_t width() const { return classes_; }
  size_t value_width() const { return classes_; }
  uint64_t min_leaf() const { return min_leaf_; }
  static void
  add(Cell* cells, size_t bin, size_t width, int32_t target, uint32_t count) {
    cells[bin * width + static_cast<size_t>(target)] += count;
  }
  static bool empty(const Cell* cells, size_t bin, size_t width) {
    Cell any = 0;
    for (size_t c = 0; c < width; ++c) {
      any |= cells[bin * width + c];
    }
    return any == 0;
  }
  uint64_t drawn(const Cell* stats) const {
    uint64_t sum = 0;
    for (size_t c = 0; c < classes_; ++c) {
      sum += stats[c];
    }
    return sum;
  }
  bool pure(const Cell* stats) const {
    size_t seen = 0;
    for (size_t c = 0; c < classes_; ++c) {
      seen += stats[c] != 0;
    }
    return seen < 2;
  }
  double score(const Cell* stats) {
    std::copy(stats, stats + classes_, left_.begin());
    return score_.score_wide(left_);
  }
  bool worth(double gain, double /*before*/) const { return gain > -1e300; }
  void value(const Cell* stats, std::vector<float>& values) const {
    double mass = 0;
    for (size_t c = 0; c < classes_; ++c) {
      mass += score_.weighted(c, stats[c]);
    }
    for (size_t c = 0; c < classes_; ++c) {
      values.push_back(
          static_cast<float>(
              mass > 0 ? score_.weighted(c, stats[c]) / mass
                       : 1. / static_cast<double>(classes_)));
    }
  }

  // One feature's bins from low to high. `next` gives the next bin that holds
  // rows, or -1. Improves `best` and keeps the left side's counts.
  template <class Next>
  bool scan(
      const Cell* cells,
      Next&& next,
      const Cell* total,
      int feature,
      Split& best,
      std::vector<Cell>& left_of_best) {
    std::fill(left_.begin(), left_.end(), 0);
    std::copy(total, total + classes_, right_.begin());
    uint64_t drawn_left = 0;
    uint64_t drawn_right = drawn(total);
    bool found = false;
    int previous = -1;
    for (int bin = next(); bin >= 0; bin = next()) {
      if (previous >= 0 && drawn_left >= min_leaf_ &&
          drawn_right >= min_leaf_) {
        found = true;
        const double score =
            score_.score_wide(left_) + score_.score_wide(right_);
        if (score > best.score) {
          // In the middle of the bins that no row here fills.
          best = {
              feature, static_cast<uint32_t>(previous + bin - 1) / 2, score};
          left_of_best = left_;
        }
      }
      const Cell* cell = cells + static_cast<size_t>(bin) * classes_;
      for (size_t c = 0; c < classes_; ++c) {
        left_[c] += cell[c];
        right_[c] -= cell[c];
        drawn_left += cell[c];
        drawn_right -= cell[c];
      }
      previous = bin;
    }
    return found;
  }
  template <size_t kWords>
  double score_packed(const uint64_t* words) const {
    return score_.template score_packed<kWords>(words);
  }

 private:
  static std::vector<double> whole_fours(
      std::vector<double> weights,
      size_t classes) {
    weights.resize((classes + 3) / 4 * 4);
    return weights;
  }

  size_t classes_;
  uint64_t min_leaf_;
  ClassScore<kEntropy, kWeighted> score_;
  std::vector<Cell> left_;
  std::vector<Cell> right_;
};

}  // namespace lockstep::forest
