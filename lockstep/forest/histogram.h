#pragma once

// The histograms of a few features over the rows of one node, in the cache of
// the core. A node with few rows notes which bins it touched and pays for
// those only; one with many clears and scans all 256. A scan leaves its cells
// at zero for the next fill. One owner, one thread.

#include <algorithm>
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

template <class Task>
class Histograms {
 public:
  using Cell = typename Task::Cell;
  explicit Histograms(size_t width)
      : width_(width), cells_(kTogether * kMaxBins * width) {}

  // At most kTogether features. What the last call left must have been scanned.
  void fill(
      const Block& block,
      std::span<const uint32_t> rows,
      size_t stride,
      std::span<const int> features) {
    sparse_ = rows.size() < kSparse;
    const size_t apart = kMaxBins * width_;
    if (sparse_) {
      for (size_t i = 0; i < features.size(); ++i) {
        uint64_t* touched = touched_[i].data();
        const uint8_t* column = block.bins + features[i];
        for (const uint32_t row : rows) {
          const uint8_t bin = column[size_t{row} * stride];
          touched[bin >> 6] |= uint64_t{1} << (bin & 63);
        }
      }
    }
    add_rows<Task>(block, rows, stride, features, cells_.data(), apart, width_);
  }

  // Whether feature `i` of the last fill has a split at all.
  bool scan(
      size_t i,
      Task& task,
      const Cell* total,
      int feature,
      Split& best,
      std::vector<Cell>& left_of_best) {
    Cell* cells = cells_.data() + i * kMaxBins * width_;
    if (!sparse_) {
      const bool found =
          scan_all(cells, task, total, feature, best, left_of_best, width_);
      std::fill_n(cells, kMaxBins * width_, Cell{0});
      return found;
    }
    auto& touched = touched_[i];
    size_t word = 0;
    int last = -1;
    const auto next = [&]() {
      if (last >= 0) {
        std::fill_n(
            cells + static_cast<size_t>(last) * width_, width_, Cell{0});
      }
      while (word < touched.size() && touched[word] == 0) {
        ++word;
      }
      if (word == touched.size()) {
        return -1;
      }
      last = static_cast<int>(word) * 64 + std::countr_zero(touched[word]);
      touched[word] &= touched[word] - 1;
      return last;
    };
    return task.scan(cells, next, total, feature, best, left_of_best);
  }

  static bool scan_all(
      const Cell* cells,
      Task& task,
      const Cell* total,
      int feature,
      Split& best,
      std::vector<Cell>& left_of_best,
      size_t width) {
    size_t bin = 0;
    const auto next = [&]() {
      while (bin < kMaxBins && Task::empty(cells, bin, width)) {
        ++bin;
      }
      return bin < kMaxBins ? static_cast<int>(bin++) : -1;
    };
    return task.scan(cells, next, total, feature, best, left_of_best);
  }

 private:
  static constexpr size_t kSparse = 256;  // rows
  size_t width_;
  std::vector<Cell> cells_;
  std::array<std::array<uint64_t, kMaxBins / 64>, kTogether> touched_{};
  bool sparse_ = false;
};

}  // namespace lockstep::forest
