#include "lockstep/forest/bin_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep::forest {

BinBlock::BinBlock(size_t num_features)
    : num_features_(num_features),
      stride_(
          num_features > 256
              ? num_features
              : std::max<size_t>(16, std::bit_ceil(num_features))) {}

void BinBlock::load(const uint8_t* bins, size_t rows) {
  rows_ = rows;
  const size_t whole = (rows + kTile - 1) / kTile * kTile;
  bins_.resize(std::max(bins_.size(), whole * stride_));
  tiles_.resize(std::max(tiles_.size(), whole * num_features_));
  for (size_t i = 0; i < rows; ++i) {
    const uint8_t* from = bins + i * num_features_;
    std::memcpy(bins_.data() + i * stride_, from, num_features_);
    uint8_t* to = tiles_.data() + i / kTile * kTile * num_features_ + i % kTile;
    for (size_t f = 0; f < num_features_; ++f) {
      to[f * kTile] = from[f];
    }
  }
}

}  // namespace lockstep::forest
