#pragma once

// What is counted in a histogram and how a split is judged by it: classes by
// entropy or Gini, numbers by squared error. A histogram cell is an integer,
// so sums do not depend on order; scores are doubles that are computed from
// them in one fixed order. Header-only because growing a tree is these loops.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/forest/options.h"
#include "lockstep/forest/table.h"

namespace lockstep::forest {

struct Split {
  int feature = -1;
  uint32_t bin = 0;
  double score = -std::numeric_limits<double>::infinity();
};

// n log2 n, from a table for counts that all but the largest nodes have.
class EntropyTable {
 public:
  static constexpr size_t kSize = 1 << 16;
  EntropyTable() : values_(kSize) {
    for (size_t n = 1; n < kSize; ++n) {
      values_[n] = large(n);
    }
  }
  double small(uint64_t n) const { return values_[n]; }  // below kSize
  double any(uint64_t n) const { return n < kSize ? values_[n] : large(n); }

 private:
  static double large(uint64_t n) {
    return static_cast<double>(n) * std::log2(static_cast<double>(n));
  }
  std::vector<double> values_;
};

// The score of a node is the sum of a term for each class less that of their
// mass; larger is purer. Four classes are summed at a time, always in the same
// order, so that packed and wide counts give the same bits.
template <bool kEntropy, bool kWeighted>
class ClassTask {
 public:
  using Cell = uint32_t;
  static constexpr bool kPackable = true;
  ClassTask(int num_classes, const FitOptions& options)
      : classes_(static_cast<size_t>(num_classes)),
        weights_(options.class_weights),
        min_leaf_(static_cast<uint64_t>(options.min_leaf)) {
    weights_.resize((classes_ + 3) / 4 * 4);
    left_.resize(weights_.size());
    right_.resize(weights_.size());
  }

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
    return score_wide(left_);
  }
  bool worth(double gain, double /*before*/) const { return gain > -1e300; }
  void value(const Cell* stats, std::vector<float>& values) const {
    double mass = 0;
    for (size_t c = 0; c < classes_; ++c) {
      mass += weighted(c, stats[c]);
    }
    for (size_t c = 0; c < classes_; ++c) {
      values.push_back(
          static_cast<float>(
              mass > 0 ? weighted(c, stats[c]) / mass
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
        const double score = score_wide(left_) + score_wide(right_);
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

  // The score of counts of 16 bits, four a word; their sum is below 2^16.
  template <size_t kWords>
  double score_packed(const uint64_t* words) const {
    double terms = 0;
    double mass = 0;
    uint64_t drawn = 0;
    for (size_t w = 0; w < kWords; ++w) {
      const uint64_t x = words[w];
      add_four<true>(
          4 * w,
          x & 0xffff,
          (x >> 16) & 0xffff,
          (x >> 32) & 0xffff,
          x >> 48,
          terms,
          mass);
      drawn += (x * 0x0001000100010001) >> 48;
    }
    return side<true>(terms, mass, drawn);
  }

 private:
  double score_wide(const std::vector<Cell>& counts) const {
    double terms = 0;
    double mass = 0;
    uint64_t drawn = 0;
    for (size_t c = 0; c < counts.size(); c += 4) {
      add_four<false>(
          c,
          counts[c],
          counts[c + 1],
          counts[c + 2],
          counts[c + 3],
          terms,
          mass);
      drawn +=
          uint64_t{counts[c]} + counts[c + 1] + counts[c + 2] + counts[c + 3];
    }
    return side<false>(terms, mass, drawn);
  }
  template <bool kSmall>
  void add_four(
      size_t c,
      uint64_t n0,
      uint64_t n1,
      uint64_t n2,
      uint64_t n3,
      double& terms,
      double& mass) const {
    terms += (term<kSmall>(c, n0) + term<kSmall>(c + 1, n1)) +
             (term<kSmall>(c + 2, n2) + term<kSmall>(c + 3, n3));
    if constexpr (kWeighted) {
      mass += (weighted(c, n0) + weighted(c + 1, n1)) +
              (weighted(c + 2, n2) + weighted(c + 3, n3));
    }
  }
  double weighted(size_t c, uint64_t n) const {
    return kWeighted ? weights_[c] * static_cast<double>(n)
                     : static_cast<double>(n);
  }
  template <bool kSmall>
  double term(size_t c, uint64_t n) const {
    if constexpr (kEntropy && !kWeighted) {
      return kSmall ? table_.small(n) : table_.any(n);
    } else {
      const double mass = weighted(c, n);
      return kEntropy ? (mass > 0 ? mass * std::log2(mass) : 0) : mass * mass;
    }
  }
  template <bool kSmall>
  double side(double terms, double mass, uint64_t drawn) const {
    if constexpr (kEntropy && !kWeighted) {
      return terms - (kSmall ? table_.small(drawn) : table_.any(drawn));
    } else {
      mass = kWeighted ? mass : static_cast<double>(drawn);
      if (mass <= 0) {
        return 0;
      }
      return kEntropy ? terms - mass * std::log2(mass) : terms / mass;
    }
  }

  size_t classes_;
  std::vector<double> weights_;  // filled up to whole fours
  uint64_t min_leaf_;
  EntropyTable table_;
  std::vector<Cell> left_;
  std::vector<Cell> right_;
};

// Numbers: a cell pair is (drawn rows, sum of fixed-point values); the score
// is the sum of squared sums over rows, which is largest where the squared
// error is smallest.
class ValueTask {
 public:
  using Cell = int64_t;
  static constexpr bool kPackable = false;
  ValueTask(const Target& target, const FitOptions& options)
      : offset_(target.offset),
        step_(target.step),
        min_leaf_(options.min_leaf) {}

  size_t width() const { return 2; }
  size_t value_width() const { return 1; }
  static void add(
      Cell* cells,
      size_t bin,
      size_t /*width*/,
      int32_t target,
      uint32_t count) {
    cells[2 * bin] += count;
    cells[2 * bin + 1] += static_cast<int64_t>(target) * count;
  }
  static bool empty(const Cell* cells, size_t bin, size_t /*width*/) {
    return cells[2 * bin] == 0;
  }
  uint64_t drawn(const Cell* stats) const {
    return static_cast<uint64_t>(stats[0]);
  }
  bool pure(const Cell* /*stats*/) const { return false; }
  double score(const Cell* stats) const { return side(stats[0], stats[1]); }
  // Equal values give no gain but rounding.
  bool worth(double gain, double before) const {
    return gain > 1e-12 * (1 + std::abs(before));
  }
  void value(const Cell* stats, std::vector<float>& values) const {
    const double mean = stats[0] > 0 ? static_cast<double>(stats[1]) /
                                           static_cast<double>(stats[0])
                                     : 0;
    values.push_back(static_cast<float>(offset_ + mean * step_));
  }

  template <class Next>
  bool scan(
      const Cell* cells,
      Next&& next,
      const Cell* total,
      int feature,
      Split& best,
      std::vector<Cell>& left_of_best) {
    int64_t drawn = 0;
    int64_t sum = 0;
    bool found = false;
    int previous = -1;
    for (int bin = next(); bin >= 0; bin = next()) {
      if (previous >= 0 && drawn >= min_leaf_ &&
          total[0] - drawn >= min_leaf_) {
        found = true;
        const double score =
            side(drawn, sum) + side(total[0] - drawn, total[1] - sum);
        if (score > best.score) {
          best = {
              feature, static_cast<uint32_t>(previous + bin - 1) / 2, score};
          left_of_best.assign({drawn, sum});
        }
      }
      drawn += cells[2 * bin];
      sum += cells[2 * bin + 1];
      previous = bin;
    }
    return found;
  }

 private:
  static double side(int64_t drawn, int64_t sum) {
    const auto wide = static_cast<double>(sum);
    return drawn > 0 ? wide * wide / static_cast<double>(drawn) : 0;
  }
  double offset_;
  double step_;
  int64_t min_leaf_;
};

// Calls `use` with the task that the target and the options ask for.
template <class Use>
auto with_task(const Target& target, const FitOptions& options, Use&& use) {
  const int classes = target.num_classes();
  if (classes == 0) {
    return use(ValueTask(target, options));
  }
  const bool weighted = !options.class_weights.empty();
  if (options.criterion == Criterion::kGini) {
    return weighted ? use(ClassTask<false, true>(classes, options))
                    : use(ClassTask<false, false>(classes, options));
  }
  return weighted ? use(ClassTask<true, true>(classes, options))
                  : use(ClassTask<true, false>(classes, options));
}

}  // namespace lockstep::forest
