#include "lockstep/forest/predict.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lockstep/collective/factory.h"
#include "lockstep/forest/encode.h"
#include "lockstep/forest/fit.h"
#include "lockstep/forest/made_table_test.h"
#include "lockstep/forest/top_levels.h"

namespace lockstep::forest {
namespace {

Forest grow(const Made& made, const FitOptions& options) {
  auto group = collective::make_single();
  Forest forest;
  forest.target = made.target;
  forest.features.resize(made.table.num_features);
  forest.binning =
      Binning(std::vector<std::vector<float>>(made.table.num_features));
  forest.trees = grow_trees(made.table, made.target, options, *group);
  return forest;
}

// Node by node, as docs/forest.md has it.
template <class Sum>
std::vector<Sum>
sums_of(const Forest& forest, const uint8_t* bins, size_t rows) {
  const auto width = static_cast<size_t>(forest.value_width());
  std::vector<Sum> result(rows * width);
  for (size_t i = 0; i < rows; ++i) {
    const uint8_t* row = bins + i * forest.features.size();
    for (const Tree& tree : forest.trees) {
      const Node* node = tree.nodes.data();
      while (node->feature != kLeaf) {
        node =
            tree.nodes.data() + node->link + (row[node->feature] > node->bin);
      }
      for (size_t c = 0; c < width; ++c) {
        result[i * width + c] +=
            static_cast<Sum>(tree.values[node->link * width + c]);
      }
    }
  }
  return result;
}

std::vector<float>
plainly(const Forest& forest, const uint8_t* bins, size_t rows) {
  if (forest.target.classes.empty()) {
    std::vector<float> means;
    for (const double sum : sums_of<double>(forest, bins, rows)) {
      means.push_back(
          static_cast<float>(sum / static_cast<double>(forest.trees.size())));
    }
    return means;
  }
  auto result = sums_of<float>(forest, bins, rows);
  for (float& value : result) {
    value *= 1.F / static_cast<float>(forest.trees.size());
  }
  return result;
}

struct Case {
  size_t rows;
  size_t features;
  int classes;
  int64_t depth;
};

class Predict : public testing::TestWithParam<Case> {};

TEST_P(Predict, IsAWalkNodeByNode) {
  const auto [rows, features, classes, depth] = GetParam();
  const auto made = make_table(rows, features, classes, 256);
  FitOptions options;
  options.trees = 5;
  options.depth = depth;
  if (classes == 0) {
    options.criterion = Criterion::kSquaredError;
  }
  const auto forest = grow(made, options);
  const Predictor predictor(forest, 2);
  const auto width = static_cast<size_t>(forest.value_width());
  const uint8_t* bins = made.table.bins.data();
  for (const size_t some : {size_t{1}, size_t{63}, size_t{64}, rows}) {
    std::vector<float> values(some * width);
    predictor.predict_bins(bins, some, values.data(), 2);
    EXPECT_EQ(values, plainly(forest, bins, some)) << some;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    Predict,
    testing::Values(
        Case{500, 3, 3, 2},     // all above the seventh level
        Case{9000, 16, 4, 15},  // three blocks
        Case{2000, 33, 2, 0},   // as deep as it goes
        Case{2000, 60, 11, 12},
        Case{1000, 130, 0, 9},
        Case{600, 300, 3, 20},  // a feature does not fit in a byte
        Case{70000, 4, 0, 0}),  // nor a node in two
    [](const auto& info) {
      return fmt::format(
          "{}x{}classes{}depth{}",
          info.param.rows,
          info.param.features,
          info.param.classes,
          info.param.depth);
    });

TEST(PredictOne, ATreeOfOneLeaf) {
  auto made = make_table(100, 3, 2);
  Forest forest;
  forest.target = made.target;
  forest.features.resize(3);
  forest.binning = Binning(std::vector<std::vector<float>>(3));
  forest.trees = {{{Node{}}, {.25F, .75F}, 0}};
  std::vector<float> values(200);
  Predictor(forest).predict_bins(made.table.bins.data(), 100, values.data(), 1);
  EXPECT_EQ(values, plainly(forest, made.table.bins.data(), 100));
  EXPECT_EQ(values[199], .75F);
}

TEST(TopLevels, EveryProcessorsWayIsThePlainOne) {
  std::mt19937 generator(1);
  TopLevels top;
  for (auto& node : top.nodes) {
    node = {
        static_cast<uint32_t>(generator() % 5),
        static_cast<uint8_t>(generator())};
  }
  std::vector<uint8_t> tile(5 * BinBlock::kTile);
  for (auto& bin : tile) {
    bin = static_cast<uint8_t>(generator());
  }
  uint8_t places[BinBlock::kTile];
  uint8_t plain[BinBlock::kTile];
  walk_top(top, tile.data(), places);
  walk_top_plain(top, tile.data(), plain);
  for (size_t i = 0; i < BinBlock::kTile; ++i) {
    size_t node = 0;
    while (node < top.nodes.size()) {
      const auto [feature, bin] = top.nodes[node];
      const bool right = tile[feature * BinBlock::kTile + i] > bin;
      node = 2 * node + (right ? 2 : 1);
    }
    EXPECT_EQ(places[i], node - top.nodes.size()) << i;
    EXPECT_EQ(plain[i], node - top.nodes.size()) << i;
  }
}

TEST(Encode, EveryProcessorsWayIsThePlainOne) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  constexpr size_t kFeatures = 3;
  std::vector<float> edges(kFeatures * kMaxBins, INFINITY);
  for (size_t f = 0; f < kFeatures; ++f) {
    const size_t count = f == 0 ? 0 : f == 1 ? 20 : kMaxBins - 1;
    const auto begin = edges.begin() + static_cast<int64_t>(f * kMaxBins);
    const auto end = begin + static_cast<int64_t>(count);
    std::generate(begin, end, [&] { return uniform(generator); });
    std::sort(begin, end);
  }
  std::vector<float> rows;
  for (size_t i = 0; i < 2000 * kFeatures; ++i) {
    // Edges themselves too, which lie in the bin that they end.
    rows.push_back(
        i % 2 == 0 ? uniform(generator) * 1.1F
                   : edges[i % kFeatures * kMaxBins + i % (kMaxBins - 1)]);
  }
  std::vector<uint8_t> bins(rows.size());
  std::vector<uint8_t> plain(rows.size());
  encode_bins(rows, edges.data(), kFeatures, bins.data());
  encode_bins_plain(rows, edges.data(), kFeatures, plain.data());
  EXPECT_EQ(bins, plain);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* own = edges.data() + i % kFeatures * kMaxBins;
    const auto below = std::lower_bound(own, own + kMaxBins, rows[i]) - own;
    ASSERT_EQ(plain[i], std::min<int64_t>(below, kMaxBins - 1)) << rows[i];
  }
}

}  // namespace
}  // namespace lockstep::forest
