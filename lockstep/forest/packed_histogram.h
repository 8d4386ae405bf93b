#pragma once

// The same as histogram.h for up to eight classes and fewer than 2^16 drawn
// rows: four counts of 16 bits in a word, so that a row is one addition and a
// bin is summed in one. Which bins hold rows is kept as a set of 256 bits. One
// owner, one thread.

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/forest/add_rows.h"
#include "lockstep/forest/binning.h"
#include "lockstep/forest/split.h"
#include "lockstep/forest/table.h"

namespace lockstep::forest {

inline constexpr uint64_t kPackedLimit = 1 << 16;

template <size_t kWords>
class PackedHistograms {
 public:
  // As histogram.h.
  void fill(
      const Block& block,
      std::span<const uint32_t> rows,
      size_t stride,
      std::span<const int> features);

  template <class Task>
  bool scan(
      size_t i,
      const Task& task,
      const uint32_t* total,
      int feature,
      Split& best,
      std::vector<uint32_t>& left_of_best) {
    Words all{};
    for (size_t c = 0; c < task.width(); ++c) {
      all[c / 4] |= uint64_t{total[c]} << (c % 4 * 16);
    }
    Words left{};
    Words left_kept{};
    bool found = false;
    bool better = false;
    int previous = -1;
    const bool any_leaf = task.min_leaf() <= 1;
    uint64_t* cells = cells_[i].data();
    for (size_t word = 0; word < kMaxBins / 64; ++word) {
      uint64_t set = touched_[i][word];
      while (set != 0) {
        const int bin = static_cast<int>(word * 64) + std::countr_zero(set);
        set &= set - 1;
        if (previous >= 0) {
          Words right;
          for (size_t w = 0; w < kWords; ++w) {
            right[w] = all[w] - left[w];
          }
          if (any_leaf || (drawn(left) >= task.min_leaf() &&
                           drawn(right) >= task.min_leaf())) {
            found = true;
            const double score =
                task.template score_packed<kWords>(left.data()) +
                task.template score_packed<kWords>(right.data());
            if (score > best.score) {
              best = {
                  feature,
                  static_cast<uint32_t>(previous + bin - 1) / 2,
                  score};
              left_kept = left;
              better = true;
            }
          }
        }
        for (size_t w = 0; w < kWords; ++w) {
          uint64_t& cell = cells[static_cast<size_t>(bin) * kWords + w];
          left[w] += cell;
          cell = 0;
        }
        previous = bin;
      }
      touched_[i][word] = 0;
    }
    if (better) {
      left_of_best.resize(task.width());
      for (size_t c = 0; c < task.width(); ++c) {
        left_of_best[c] = (left_kept[c / 4] >> (c % 4 * 16)) & 0xffff;
      }
    }
    return found;
  }

 private:
  using Words = std::array<uint64_t, kWords>;

  static uint64_t drawn(const Words& words) {
    uint64_t sum = 0;
    for (const uint64_t x : words) {
      sum += (x * 0x0001000100010001) >> 48;
    }
    return sum;
  }

  template <size_t kCount, bool kAll>
  void fill_some(
      const Block& block,
      std::span<const uint32_t> rows,
      size_t stride,
      std::span<const int> features,
      size_t at);

  using Cells = std::array<uint64_t, kMaxBins * kWords>;

  std::array<Cells, kTogether> cells_{};
  std::array<std::array<uint64_t, kMaxBins / 64>, kTogether> touched_{};
  bool dense_ = false;
};

// Four and eight classes.
extern template class PackedHistograms<1>;
extern template class PackedHistograms<2>;

}  // namespace lockstep::forest
