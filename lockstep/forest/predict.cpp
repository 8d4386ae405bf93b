#include "lockstep/forest/predict.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

constexpr size_t kBlock = 1024;     // rows that walk the trees together
constexpr size_t kInterleave = 16;  // walks under way at once

}  // namespace

Predictor::Predictor(const Forest& forest) : forest_(forest) {
  for (const auto& tree : forest.trees) {
    auto& steps = steps_.emplace_back();
    steps.reserve(tree.nodes.size());
    for (size_t i = 0; i < tree.nodes.size(); ++i) {
      const Node& node = tree.nodes[i];
      if (node.feature == kLeaf) {
        steps.push_back({0, kMaxBins, static_cast<uint32_t>(i)});
      } else {
        steps.push_back(
            {static_cast<uint16_t>(node.feature),
             static_cast<uint16_t>(node.bin),
             node.link});
      }
    }
  }
}

void Predictor::walk(
    const uint8_t* bins,
    size_t rows,
    size_t tree,
    uint32_t* leaves) const {
  const Step* steps = steps_[tree].data();
  const size_t stride = forest_.binning.num_features();
  const int depth = forest_.trees[tree].depth;
  size_t i = 0;
  for (; i + kInterleave <= rows; i += kInterleave) {
    std::array<uint32_t, kInterleave> at{};
    const uint8_t* own = bins + i * stride;
    for (int d = 0; d < depth; ++d) {
      for (size_t j = 0; j < kInterleave; ++j) {
        const Step step = steps[at[j]];
        at[j] = step.left + (own[j * stride + step.feature] > step.bin);
      }
    }
    std::copy(at.begin(), at.end(), leaves + i);
  }
  for (; i < rows; ++i) {
    uint32_t at = 0;
    for (int d = 0; d < depth; ++d) {
      const Step step = steps[at];
      at = step.left + (bins[i * stride + step.feature] > step.bin);
    }
    leaves[i] = at;
  }
}

void Predictor::predict_bins(
    const uint8_t* bins,
    size_t rows,
    float* values,
    int threads) const {
  const auto width = static_cast<size_t>(forest_.value_width());
  const size_t stride = forest_.binning.num_features();
  const float share = 1.F / static_cast<float>(forest_.trees.size());
  for_pieces((rows + kBlock - 1) / kBlock, threads, [&](size_t piece, size_t) {
    const size_t first = piece * kBlock;
    const size_t count = std::min(kBlock, rows - first);
    float* out = values + first * width;
    std::fill_n(out, count * width, 0.F);
    std::array<uint32_t, kBlock> leaves;
    for (size_t t = 0; t < steps_.size(); ++t) {
      walk(bins + first * stride, count, t, leaves.data());
      const Tree& tree = forest_.trees[t];
      for (size_t i = 0; i < count; ++i) {
        const float* value =
            tree.values.data() + tree.nodes[leaves[i]].link * width;
        for (size_t c = 0; c < width; ++c) {
          out[i * width + c] += value[c];
        }
      }
    }
    for (size_t i = 0; i < count * width; ++i) {
      out[i] *= share;
    }
  });
}

void Predictor::predict(std::span<const float> rows, float* values, int threads)
    const {
  const size_t stride = forest_.binning.num_features();
  const auto width = static_cast<size_t>(forest_.value_width());
  const size_t count = stride == 0 ? 0 : rows.size() / stride;
  constexpr size_t kPiece = 8 * kBlock;
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
    std::fill_n(out, count * width, 0.F);
    std::array<uint32_t, kBlock> leaves;
    std::array<uint32_t, kBlock> votes{};
    for (size_t t = 0; t < steps_.size(); ++t) {
      walk(bins + first * stride, count, t, leaves.data());
      const Tree& tree = forest_.trees[t];
      for (size_t i = 0; i < count; ++i) {
        if (draws[t].count(first_row + first + i) != 0) {
          continue;
        }
        ++votes[i];
        const float* value =
            tree.values.data() + tree.nodes[leaves[i]].link * width;
        for (size_t c = 0; c < width; ++c) {
          out[i * width + c] += value[c];
        }
      }
    }
    for (size_t i = 0; i < count * width; ++i) {
      const auto seen = static_cast<float>(votes[i / width]);
      out[i] =
          seen > 0 ? out[i] / seen : std::numeric_limits<float>::quiet_NaN();
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
