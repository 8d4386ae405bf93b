#include "lockstep/forest/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "lockstep/collective/group_fixture.h"
#include "lockstep/forest/made_table_test.h"
#include "lockstep/forest/predict.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/score.h"

namespace lockstep::forest {
namespace {

using collective::GroupCase;
using collective::Mode;
using collective::run_group;

std::vector<Tree> grow_alone(const Made& made, const FitOptions& options) {
  auto group = collective::make_single();
  return grow_trees(made.table, made.target, options, *group);
}

FitOptions exact(Criterion criterion) {
  FitOptions options;
  options.trees = 1;
  options.criterion = criterion;
  options.bootstrap = false;
  options.depth = 6;
  options.min_split = 40;
  options.min_leaf = 3;
  options.features_per_split = 5;
  return options;
}

// What the split of a node is worth, in long doubles and from the definition.
long double impurity(
    const Made& made,
    const FitOptions& options,
    const std::vector<uint32_t>& rows) {
  long double mass = 0;
  if (made.target.num_classes() == 0) {
    long double mean = 0;
    for (const auto row : rows) {
      mean += made.table.targets[row];
    }
    mean /= static_cast<long double>(rows.size());
    for (const auto row : rows) {
      const long double off = made.table.targets[row] - mean;
      mass += off * off;
    }
    return mass;
  }
  std::map<int32_t, long double> counts;
  for (const auto row : rows) {
    const auto c = made.table.targets[row];
    const double weight = options.class_weights.empty()
                              ? 1
                              : options.class_weights[static_cast<size_t>(c)];
    counts[c] += weight;
    mass += weight;
  }
  long double sum = 0;
  for (const auto& [c, count] : counts) {
    const long double share = count / mass;
    sum += options.criterion == Criterion::kEntropy ? -share * std::log2(share)
                                                    : share * (1 - share);
  }
  return sum * mass;
}

// Walks the tree and compares each split with the best of all there are.
void expect_best(
    const Made& made,
    const FitOptions& options,
    const Tree& tree,
    uint32_t at,
    const std::vector<uint32_t>& rows,
    size_t& checked) {
  const Node& node = tree.nodes[at];
  if (node.feature == kLeaf) {
    return;
  }
  const auto sides = [&](size_t feature, uint32_t bin) {
    std::pair<std::vector<uint32_t>, std::vector<uint32_t>> result;
    for (const auto row : rows) {
      const auto value =
          made.table.bins[row * made.table.num_features + feature];
      (value <= bin ? result.first : result.second).push_back(row);
    }
    return result;
  };
  const auto cost = [&](const auto& pair) {
    return impurity(made, options, pair.first) +
           impurity(made, options, pair.second);
  };
  long double best = HUGE_VALL;
  for (size_t f = 0; f < made.table.num_features; ++f) {
    for (uint32_t bin = 0; bin < 255; ++bin) {
      const auto pair = sides(f, bin);
      const auto least = static_cast<size_t>(options.min_leaf);
      if (pair.first.size() >= least && pair.second.size() >= least) {
        best = std::min(best, cost(pair));
      }
    }
  }
  const auto chosen = sides(static_cast<size_t>(node.feature), node.bin);
  const long double before = impurity(made, options, rows);
  EXPECT_NEAR(
      static_cast<double>(cost(chosen) / before),
      static_cast<double>(best / before),
      1e-12);
  if (made.target.num_classes() > 0) {
    const bool gini = options.criterion == Criterion::kGini;
    EXPECT_NEAR(
        node.gain,
        static_cast<double>(before - cost(chosen)),
        1e-5 * static_cast<double>(before))
        << gini;
  }
  ++checked;
  expect_best(made, options, tree, node.link, chosen.first, checked);
  expect_best(made, options, tree, node.link + 1, chosen.second, checked);
}

void expect_best_splits(const Made& made, const FitOptions& options) {
  const auto trees = grow_alone(made, options);
  std::vector<uint32_t> rows(made.table.num_rows);
  std::iota(rows.begin(), rows.end(), 0);
  size_t checked = 0;
  expect_best(made, options, trees.at(0), 0, rows, checked);
  EXPECT_GT(checked, 8U);
}

TEST(Splits, AreTheBestByEntropy) {
  expect_best_splits(make_table(700, 5, 3), exact(Criterion::kEntropy));
}
TEST(Splits, AreTheBestByGini) {
  expect_best_splits(make_table(700, 5, 3), exact(Criterion::kGini));
}
TEST(Splits, AreTheBestWithSevenAndTwelveClasses) {
  expect_best_splits(make_table(700, 5, 7), exact(Criterion::kEntropy));
  expect_best_splits(make_table(700, 5, 12), exact(Criterion::kGini));
}
TEST(Splits, AreTheBestWithClassWeights) {
  for (const auto criterion : {Criterion::kEntropy, Criterion::kGini}) {
    auto options = exact(criterion);
    options.class_weights = {.5, 3, 1.25};
    expect_best_splits(make_table(700, 5, 3), options);
  }
}
TEST(Splits, AreTheBestForNumbers) {
  expect_best_splits(make_table(700, 5, 0), exact(Criterion::kSquaredError));
}

TEST(Splits, PassOverConstantFeaturesUntilOneSplits) {
  auto made = make_table(400, 9, 2);
  for (size_t i = 0; i < made.table.num_rows; ++i) {
    for (size_t f = 1; f < 9; ++f) {
      made.table.bins[i * 9 + f] = 3;
    }
  }
  FitOptions options;
  options.trees = 4;
  options.features_per_split = 1;
  for (const auto& tree : grow_alone(made, options)) {
    EXPECT_EQ(tree.nodes[0].feature, 0);
  }
}

TEST(Splits, OnlyConstantFeaturesGiveOneLeaf) {
  auto made = make_table(100, 3, 2);
  std::fill(made.table.bins.begin(), made.table.bins.end(), 0);
  const auto trees = grow_alone(made, {.trees = 2});
  EXPECT_EQ(trees.at(0).nodes.size(), 1U);
}

struct Setting {
  int classes;
  FitOptions options;
};

std::vector<Setting> settings() {
  FitOptions plain;
  plain.trees = 7;
  plain.depth = 9;
  plain.local_rows = 60;
  plain.memory = 1 << 20;
  auto weighted = plain;
  weighted.class_weights = {1, 2.5, .3};
  weighted.sample = .7;
  auto gini = plain;
  gini.criterion = Criterion::kGini;
  gini.features_per_split = 1;
  gini.bootstrap = false;
  auto numbers = plain;
  numbers.criterion = Criterion::kSquaredError;
  numbers.min_leaf = 4;
  return {{3, plain}, {3, weighted}, {10, gini}, {0, numbers}};
}

TEST(SameModel, WhateverTheThreads) {
  for (auto [classes, options] : settings()) {
    const auto made = make_table(900, 6, classes);
    const auto one = grow_alone(made, options);
    EXPECT_GT(one.at(0).nodes.size(), 20U);
    for (const int threads : {2, 4}) {
      options.threads = threads;
      EXPECT_EQ(grow_alone(made, options), one) << threads;
    }
  }
}

TEST(SameModel, AnotherSeedIsAnotherModel) {
  const auto made = make_table(900, 6, 3);
  FitOptions options = settings()[0].options;
  const auto one = grow_alone(made, options);
  options.seed = 1;
  EXPECT_NE(grow_alone(made, options), one);
}

class SameModelOver : public testing::TestWithParam<GroupCase> {};

TEST_P(SameModelOver, RanksThatExchangeRowsOrHistograms) {
  for (auto [classes, options] : settings()) {
    const auto made = make_table(900, 6, classes);
    const auto one = grow_alone(made, options);
    for (const auto exchange : {Exchange::kRows, Exchange::kHistograms}) {
      options.exchange = exchange;
      options.threads = 2;
      run_group(GetParam(), [&](collective::Communicator& group) {
        const auto part = shard(made.table, group.rank(), group.size());
        EXPECT_EQ(grow_trees(part, made.target, options, group), one);
      });
    }
  }
}

// 17 MB of rows: nodes are copied together for each of the caches on the way
// down. On two ranks they are cut elsewhere.
TEST(SameModel, WhateverIsCopiedForTheCaches) {
  const auto made = make_table(20000, 850, 3);
  FitOptions options;
  options.trees = 1;
  options.depth = 10;
  options.bootstrap = false;
  const auto one = grow_alone(made, options);
  EXPECT_GT(one.at(0).nodes.size(), 100U);
  options.exchange = Exchange::kHistograms;
  options.local_rows = 4000;
  run_group({Mode::kThreads, 2}, [&](collective::Communicator& group) {
    const auto part = shard(made.table, group.rank(), group.size());
    EXPECT_EQ(grow_trees(part, made.target, options, group), one);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Groups,
    SameModelOver,
    testing::Values(
        GroupCase{Mode::kThreads, 2},
        GroupCase{Mode::kThreads, 4},
        GroupCase{Mode::kRing, 3}),
    [](const auto& info) {
      return collective::to_string(info.param.mode) +
             std::to_string(info.param.size);
    });

TEST(Exchange, ChoosesHistogramsWhenRowsDoNotFit) {
  const auto made = make_table(900, 6, 3);
  run_group({Mode::kThreads, 2}, [&](collective::Communicator& group) {
    FitOptions options;
    EXPECT_EQ(choose_exchange(made.table, options, group), Exchange::kRows);
    options.memory = 2000;
    EXPECT_EQ(
        choose_exchange(made.table, options, group), Exchange::kHistograms);
  });
}

TEST(Draws, TendToDrawingWithReplacement) {
  const Draws draws(tree_key(3, 4), true, 1);
  std::map<uint32_t, int> seen;
  for (uint64_t row = 0; row < 100000; ++row) {
    ++seen[draws.count(row)];
  }
  EXPECT_NEAR(seen[0], 36788, 500);
  EXPECT_NEAR(seen[1], 36788, 500);
  EXPECT_NEAR(seen[2], 18394, 400);
  EXPECT_NEAR(seen[3], 6131, 250);
}

TEST(Score, OutOfBagIsBetweenChanceAndTraining) {
  const auto made = make_table(3000, 6, 3);
  FitOptions options;
  options.trees = 40;
  options.threads = 2;
  auto group = collective::make_single();
  Forest forest;
  forest.target = made.target;
  forest.features.resize(6);
  forest.binning = Binning(std::vector<std::vector<float>>(6));
  forest.trees = grow_trees(made.table, made.target, options, *group);
  const Predictor predictor(forest);
  const auto trained =
      training_score(predictor, made.table, made.target, 2, *group);
  const auto left_out =
      out_of_bag_score(predictor, made.table, made.target, options, *group);
  EXPECT_EQ(trained.rows, 3000);
  EXPECT_EQ(left_out.rows, 3000);
  EXPECT_GT(trained.accuracy, .95);
  EXPECT_LT(left_out.accuracy, trained.accuracy);
  EXPECT_GT(left_out.accuracy, .7);
  const auto weights = importances(forest);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.), 1, 1e-9);
  EXPECT_GT(weights[0], weights[1]);
  EXPECT_GT(weights[1], 1.5 * weights[2]);
  EXPECT_EQ(weights[5], 0);
}

}  // namespace
}  // namespace lockstep::forest
