#pragma once

// Turns numbers into at most 256 bins a feature: exact where a feature has few
// values, quantiles of a sample elsewhere. A value v lies in the first bin
// whose edge is not below it, so "bin <= b" and "v <= edges[b]" say the same.
// Pure and thread-safe; equal samples give equal edges.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::forest {

inline constexpr size_t kMaxBins = 256;
// Rows that edges are made from; every n-th row of a larger table.
inline constexpr size_t kBinSample = 65536;

class Binning {
 public:
  Binning() = default;
  explicit Binning(std::vector<std::vector<float>> edges);
  // `sample`: whole rows, one after the other, of finite values.
  static Binning make(
      std::span<const float> sample,
      size_t num_features,
      size_t max_bins,
      int threads = 1);

  size_t num_features() const { return edges_.size(); }
  // Ascending, at most kMaxBins - 1; none for a constant feature.
  const std::vector<float>& edges(size_t feature) const {
    return edges_[feature];
  }
  // The value that splits after `bin`.
  float threshold(size_t feature, size_t bin) const;

  // Whole rows; `bins` gets a byte a value.
  void encode(std::span<const float> rows, uint8_t* bins) const;

 private:
  std::vector<std::vector<float>> edges_;
  // Edges as a complete search tree of 255, filled up with infinity.
  std::vector<float> padded_;
};

}  // namespace lockstep::forest
