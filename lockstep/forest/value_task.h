#pragma once

// Trees of numbers: what a histogram counts and how a split is judged by it.
// The same members as class_task.h, and the same rules: cells are integers,
// scores are doubles that are computed from them in one fixed order.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/forest/options.h"
#include "lockstep/forest/split.h"
#include "lockstep/forest/table.h"

namespace lockstep::forest {

// Numbers: a cell pair is (drawn rows, sum of fixed-point values); the score
// is the sum of squared sums over rows, which is largest where the squared
// error is smallest.
class ValueTask {
 public:
  using Cell = int64_t;
  static constexpr bool kPackable = false;
  ValueTask(const Target& target, const FitOptions& options)
      : step_(target.step), min_leaf_(options.min_leaf) {}

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
  // Without the target's offset, which a float would round: labels may be large
  // compared with their spread.
  void value(const Cell* stats, std::vector<float>& values) const {
    const double mean = stats[0] > 0 ? static_cast<double>(stats[1]) /
                                           static_cast<double>(stats[0])
                                     : 0;
    values.push_back(static_cast<float>(mean * step_));
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
  double step_;
  int64_t min_leaf_;
};

}  // namespace lockstep::forest
