#pragma once

// Some rows of bins on their way through all trees, twice: row after row with
// room to the next power of two, and in tiles of 64 rows where the bins of a
// feature lie together, for comparisons of 64 rows at once. One owner; many
// may read.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::forest {

class BinBlock {
 public:
  static constexpr size_t kRows = 4096;  // at most
  static constexpr size_t kTile = 64;

  explicit BinBlock(size_t num_features);
  // Whole rows, num_features bytes each.
  void load(const uint8_t* bins, size_t rows);

  size_t rows() const { return rows_; }
  size_t stride() const { return stride_; }  // 16 to 256, else num_features
  // Rows up to the next whole tile may be read too.
  const uint8_t* row(size_t i) const { return bins_.data() + i * stride_; }
  // Feature f of the tile's rows is at f * kTile.
  const uint8_t* tile(size_t i) const {
    return tiles_.data() + i * num_features_ * kTile;
  }

 private:
  size_t num_features_;
  size_t stride_;
  size_t rows_ = 0;
  std::vector<uint8_t> bins_;
  std::vector<uint8_t> tiles_;
};

}  // namespace lockstep::forest
