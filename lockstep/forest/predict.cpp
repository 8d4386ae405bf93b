#include "lockstep/forest/predict.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

constexpr size_t kBlock = 4096;    // rows that walk the trees together
constexpr size_t kInterleave = 8;  // walks under way at once, in registers

template <class Step>
void walk_steps(
    const std::vector<Step>& tree,
    int depth,
    const uint8_t* bins,
    size_t rows,
    size_t stride,
    uint32_t* nodes) {
  const Step* steps = tree.data();
  size_t i = 0;
  for (; i + kInterleave <= rows; i += kInterleave) {
    uint32_t at[kInterleave] = {};
    const uint8_t* own = bins + i * stride;
    for (int d = 0; d < depth; ++d) {
#pragma GCC unroll 8
      for (size_t j = 0; j < kInterleave; ++j) {
        const Step step = steps[at[j]];
        at[j] = step.left + (own[j * stride + step.feature] > step.bin);
      }
    }
    std::copy_n(at, kInterleave, nodes + i);
  }
  for (; i < rows; ++i) {
    uint32_t at = 0;
    for (int d = 0; d < depth; ++d) {
      const Step step = steps[at];
      at = step.left + (bins[i * stride + step.feature] > step.bin);
    }
    nodes[i] = at;
  }
}

template <class Step>
std::vector<Step> steps_of(const Tree& tree) {
  std::vector<Step> steps;
  steps.reserve(tree.nodes.size());
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    Step step{};
    const bool leaf = node.feature == kLeaf;
    step.feature = static_cast<decltype(step.feature)>(leaf ? 0 : node.feature);
    step.bin = static_cast<decltype(step.bin)>(leaf ? kMaxBins - 1 : node.bin);
    step.left = static_cast<decltype(step.left)>(leaf ? i : node.link);
    steps.push_back(step);
  }
  return steps;
}

// Adds the value of each row's leaf. The common widths are unrolled.
template <size_t kWidth>
void add_values(
    const float* values,
    const uint32_t* leaves,
    size_t count,
    size_t width,
    float* out) {
  width = kWidth == 0 ? width : kWidth;
  for (size_t i = 0; i < count; ++i) {
    const float* value = values + leaves[i] * width;
    for (size_t c = 0; c < width; ++c) {
      out[i * width + c] += value[c];
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
    case 1:
      return add_values<1>(values, leaves, count, width, out);
    case 2:
      return add_values<2>(values, leaves, count, width, out);
    case 4:
      return add_values<4>(values, leaves, count, width, out);
    default:
      return add_values<0>(values, leaves, count, width, out);
  }
}

}  // namespace

Predictor::Predictor(const Forest& forest) : forest_(forest) {
  const bool few = forest.features.size() <= 256;
  for (const auto& tree : forest.trees) {
    auto& walk = walks_.emplace_back();
    walk.depth = tree.depth;
    if (few && tree.nodes.size() <= 65536) {
      walk.short_steps = steps_of<Short>(tree);
    } else {
      walk.long_steps = steps_of<Long>(tree);
    }
    for (const Node& node : tree.nodes) {
      walk.values.push_back(node.link);
    }
  }
}

void Predictor::walk(
    const uint8_t* bins,
    size_t rows,
    size_t tree,
    uint32_t* values) const {
  const Walk& walk = walks_[tree];
  const size_t stride = forest_.binning.num_features();
  if (!walk.short_steps.empty()) {
    walk_steps(walk.short_steps, walk.depth, bins, rows, stride, values);
  } else {
    walk_steps(walk.long_steps, walk.depth, bins, rows, stride, values);
  }
  for (size_t i = 0; i < rows; ++i) {
    values[i] = walk.values[values[i]];
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
    for (size_t t = 0; t < walks_.size(); ++t) {
      walk(bins + first * stride, count, t, leaves.data());
      const float* from = forest_.trees[t].values.data();
      add_values(from, leaves.data(), count, width, out);
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
    std::fill_n(out, count * width, 0.F);
    std::array<uint32_t, kBlock> leaves;
    std::array<uint32_t, kBlock> votes{};
    for (size_t t = 0; t < walks_.size(); ++t) {
      walk(bins + first * stride, count, t, leaves.data());
      const Tree& tree = forest_.trees[t];
      for (size_t i = 0; i < count; ++i) {
        if (draws[t].count(first_row + first + i) != 0) {
          continue;
        }
        ++votes[i];
        const float* value = tree.values.data() + leaves[i] * width;
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
