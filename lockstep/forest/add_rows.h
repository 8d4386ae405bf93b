#pragma once

// The loop over the rows of a node: each adds its count to the histograms of
// some features. Pure.

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/forest/table.h"

namespace lockstep::forest {

// Features that are filled in one pass over the rows.
inline constexpr size_t kTogether = 4;

// Adds rows to the histograms of kCount features, `apart` cells from each
// other.
template <class Task, size_t kCount>
void add_rows(
    const Block& block,
    std::span<const uint32_t> rows,
    size_t stride,
    const int* features,
    typename Task::Cell* cells,
    size_t apart,
    size_t width) {
  for (size_t at = 0; at < rows.size(); ++at) {
    prefetch_row(block, rows, at, stride);
    const uint32_t row = rows[at];
    const uint8_t* bins = block.bins + size_t{row} * stride;
    const int32_t target = block.targets[row];
    const uint32_t count = block.counts[row];
    for (size_t i = 0; i < kCount; ++i) {
      Task::add(cells + i * apart, bins[features[i]], width, target, count);
    }
  }
}

template <class Task>
void add_rows(
    const Block& block,
    std::span<const uint32_t> rows,
    size_t stride,
    std::span<const int> features,
    typename Task::Cell* cells,
    size_t apart,
    size_t width) {
  for (size_t i = 0; i < features.size();) {
    const int* some = features.data() + i;
    auto* to = cells + i * apart;
    if (features.size() - i >= kTogether) {
      add_rows<Task, kTogether>(block, rows, stride, some, to, apart, width);
      i += kTogether;
    } else {
      add_rows<Task, 1>(block, rows, stride, some, to, apart, width);
      i += 1;
    }
  }
}

}  // namespace lockstep::forest
