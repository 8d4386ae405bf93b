#pragma once

// Rows in the forms a forest needs: as numbers when they are read, as bins
// when trees are grown. Rows are sharded over ranks: a table holds those from
// `first_row` on of `total_rows`. Plain values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::forest {

// What the label is: one of a set of classes, or a number in fixed point, so
// that sums are exact in any order.
struct Target {
  std::vector<std::string> classes{};  // empty: regression
  // value = offset + fixed * step. Leaves and predictions are counted from the
  // offset: a float holds what labels differ by.
  double offset = 0;
  double step = 1;
  int num_classes() const { return static_cast<int>(classes.size()); }
};

// |fixed| stays within this: sums over 2^32 rows fit in 63 bits.
inline constexpr int32_t kFixedRange = 1 << 30;

struct BinnedTable {
  size_t num_features = 0;
  size_t num_rows = 0;  // here
  uint64_t first_row = 0;
  uint64_t total_rows = 0;
  std::vector<uint8_t> bins;     // row-major, num_features a row
  std::vector<int32_t> targets;  // class index or fixed-point value
};

// A view of rows that trees are grown from; `counts` is how often each row is
// drawn.
struct Block {
  const uint8_t* bins = nullptr;
  const int32_t* targets = nullptr;
  const uint8_t* counts = nullptr;
};

// How many rows ahead of the one in hand are asked for.
inline constexpr size_t kAhead = 24;

// Before row rows[i] is used: asks memory for one that follows.
inline void prefetch_row(
    const Block& block,
    std::span<const uint32_t> rows,
    size_t i,
    size_t num_features) {
  if (i + kAhead < rows.size()) {
    const size_t row = rows[i + kAhead];
    __builtin_prefetch(block.bins + row * num_features);
    __builtin_prefetch(block.targets + row);
    __builtin_prefetch(block.counts + row);
  }
}

}  // namespace lockstep::forest
