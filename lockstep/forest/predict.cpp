#include "lockstep/forest/predict.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

constexpr size_t kBlock = BinBlock::kRows;

// Adds the value of each row's leaf. The common widths are unrolled.
template <size_t kWidth, class Sum>
void add_values(
    const float* values,
    const uint32_t* leaves,
    size_t count,
    size_t width,
    Sum* out) {
  width = kWidth == 0 ? width : kWidth;
  for (size_t i = 0; i < count; ++i) {
    const float* value = values + leaves[i] * width;
    for (size_t c = 0; c < width; ++c) {
      out[i * width + c] += static_cast<Sum>(value[c]);
    }
  }
}

void add_values(
    const float* values,
    const uint32_t* leaves,
    size_t count,
    size_t width,
    float* out) {
  switch (width) {
    case 2:
      return add_values<2>(values, leaves, count, width, out);
    case 4:
      return add_values<4>(values, leaves, count, width, out);
    default:
      return add_values<0>(values, leaves, count, width, out);
  }
}

}  // namespace

Predictor::Predictor(const Forest& forest, int threads)
    : forest_(forest), walks_(forest.trees.size()) {
  const auto width = static_cast<size_t>(forest.value_width());
  for_pieces(walks_.size(), threads, [&](size_t i, size_t) {
    walks_[i] = TreeWalk(forest.trees[i], forest.binning.num_features(), width);
  });
}

void Predictor::predict_bins(
    const uint8_t* bins,
    size_t rows,
    float* values,
    int threads) const {
  const auto width = static_cast<size_t>(forest_.value_width());
  const size_t stride = forest_.binning.num_features();
  for_pieces((rows + kBlock - 1) / kBlock, threads, [&](size_t piece, size_t) {
    const size_t first = piece * kBlock;
    const size_t count = std::min(kBlock, rows - first);
    BinBlock block(stride);
    block.load(bins + first * stride, count);
    if (forest_.target.classes.empty()) {
      mean_numbers(block, count, values + first);
    } else {
      mean_shares(block, count, values + first * width);
    }
  });
}

void Predictor::mean_numbers(const BinBlock& block, size_t count, float* out)
    const {
  std::array<double, kBlock> sums{};
  std::array<uint32_t, kBlock> leaves;
  for (size_t t = 0; t < walks_.size(); ++t) {
    walks_[t].walk(block, walks_[(t + 1) % walks_.size()], leaves.data());
    add_values<1>(walks_[t].values(), leaves.data(), count, 1, sums.data());
  }
  const auto trees = static_cast<double>(walks_.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(sums[i] / trees);
  }
}

void Predictor::mean_shares(const BinBlock& block, size_t count, float* out)
    const {
  const auto width = static_cast<size_t>(forest_.value_width());
  const float share = 1.F / static_cast<float>(walks_.size());
  std::fill_n(out, count * width, 0.F);
  std::array<uint32_t, kBlock> leaves;
  for (size_t t = 0; t < walks_.size(); ++t) {
    walks_[t].walk(block, walks_[(t + 1) % walks_.size()], leaves.data());
    add_values(walks_[t].values(), leaves.data(), count, width, out);
  }
  for (size_t i = 0; i < count * width; ++i) {
    out[i] *= share;
  }
}

void Predictor::predict(std::span<const float> rows, float* values, int threads)
    const {
  const size_t stride = forest_.binning.num_features();
  const auto width = static_cast<size_t>(forest_.value_width());
  const size_t count = stride == 0 ? 0 : rows.size() / stride;
  constexpr size_t kPiece = 2 * kBlock;
  for_pieces((count + kPiece - 1) / kPiece, threads, [&](size_t piece, size_t) {
    const size_t first = piece * kPiece;
    const size_t some = std::min(kPiece, count - first);
    std::vector<uint8_t> bins(some * stride);
    forest_.binning.encode(
        rows.subspan(first * stride, some * stride), bins.data());
    predict_bins(bins.data(), some, values + first * width, 1);
  });
}

void Predictor::predict_out_of_bag(
    const uint8_t* bins,
    size_t rows,
    uint64_t first_row,
    std::span<const Draws> draws,
    float* values,
    int threads) const {
  const auto width = static_cast<size_t>(forest_.value_width());
  const size_t stride = forest_.binning.num_features();
  for_pieces((rows + kBlock - 1) / kBlock, threads, [&](size_t piece, size_t) {
    const size_t first = piece * kBlock;
    const size_t count = std::min(kBlock, rows - first);
    float* out = values + first * width;
    std::vector<double> sums(count * width);
    BinBlock block(stride);
    block.load(bins + first * stride, count);
    std::array<uint32_t, kBlock> leaves;
    std::array<uint32_t, kBlock> votes{};
    for (size_t t = 0; t < walks_.size(); ++t) {
      walks_[t].walk(block, walks_[(t + 1) % walks_.size()], leaves.data());
      for (size_t i = 0; i < count; ++i) {
        if (draws[t].count(first_row + first + i) != 0) {
          continue;
        }
        ++votes[i];
        const float* value = walks_[t].values() + leaves[i] * width;
        for (size_t c = 0; c < width; ++c) {
          sums[i * width + c] += static_cast<double>(value[c]);
        }
      }
    }
    for (size_t i = 0; i < count * width; ++i) {
      const auto seen = static_cast<double>(votes[i / width]);
      out[i] = seen > 0 ? static_cast<float>(sums[i] / seen)
                        : std::numeric_limits<float>::quiet_NaN();
    }
  });
}

std::vector<int32_t> classes_of(std::span<const float> shares, int classes) {
  const auto width = static_cast<size_t>(classes);
  std::vector<int32_t> result(shares.size() / width);
  for (size_t i = 0; i < result.size(); ++i) {
    const auto* begin = shares.data() + i * width;
    result[i] =
        static_cast<int32_t>(std::max_element(begin, begin + width) - begin);
  }
  return result;
}

}  // namespace lockstep::forest
