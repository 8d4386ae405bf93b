#pragma once

// n log2 n, from a table for counts that all but the largest nodes have. Plain
// values; thread-safe.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::forest {

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

}  // namespace lockstep::forest
