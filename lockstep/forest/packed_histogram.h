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

#include "lockstep/forest/binning.h"
#include "lockstep/forest/histogram.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/task.h"

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
      std::span<const int> features) {
    dense_ = rows.size() >= kDense;
    if (features.size() == kTogether) {
      dense_ ? fill_some<kTogether, true>(block, rows, stride, features, 0)
             : fill_some<kTogether, false>(block, rows, stride, features, 0);
      return;
    }
    for (size_t i = 0; i < features.size(); ++i) {
      const auto one = features.subspan(i, 1);
      dense_ ? fill_some<1, true>(block, rows, stride, one, i)
             : fill_some<1, false>(block, rows, stride, one, i);
    }
  }

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
  using Set = uint64_t __attribute__((vector_size(32)));
  static constexpr size_t kDense = 2048;  // rows that touch most bins

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
      size_t at) {
    const uint8_t* columns[kCount];
    Set sets[kCount] = {};
    for (size_t i = 0; i < kCount; ++i) {
      columns[i] = block.bins + features[i];
    }
    for (const uint32_t row : rows) {
      const size_t place = size_t{row} * stride;
      const auto target = static_cast<uint32_t>(block.targets[row]);
      const uint64_t one = uint64_t{block.counts[row]} << (target % 4 * 16);
      const size_t word = kWords == 1 ? 0 : target / 4;
      for (size_t i = 0; i < kCount; ++i) {
        const size_t bin = columns[i][place];
        cells_[at + i][bin * kWords + word] += one;
        if constexpr (!kAll) {
          sets[i] |= single(bin);
        }
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      for (size_t word = 0; word < kMaxBins / 64; ++word) {
        touched_[at + i][word] =
            kAll ? occupied(cells_[at + i], word) : sets[i][word];
      }
    }
  }

  using Cells = std::array<uint64_t, kMaxBins * kWords>;
  static uint64_t occupied(const Cells& cells, size_t word) {
    uint64_t set = 0;
    for (size_t bit = 0; bit < 64; ++bit) {
      uint64_t any = 0;
      for (size_t w = 0; w < kWords; ++w) {
        any |= cells[(word * 64 + bit) * kWords + w];
      }
      set |= uint64_t{any != 0} << bit;
    }
    return set;
  }
  // The set of one bin, from a table: an or of registers for every row.
  static const Set& single(size_t bin) {
    static const auto table = [] {
      std::array<Set, kMaxBins> sets{};
      for (size_t b = 0; b < kMaxBins; ++b) {
        sets[b][b / 64] = uint64_t{1} << (b % 64);
      }
      return sets;
    }();
    return table[bin];
  }

  std::array<Cells, kTogether> cells_{};
  std::array<std::array<uint64_t, kMaxBins / 64>, kTogether> touched_{};
  bool dense_ = false;
};

}  // namespace lockstep::forest
