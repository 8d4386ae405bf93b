#include "lockstep/economics/scaling.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::economics {
namespace {

double law(double compute, double volume, double latency, int n) {
  return compute + volume * 2 * (n - 1) / n + latency * (n - 1);
}

TEST(Scaling, TheLawIsFoundAgain) {
  std::vector<Split> splits;
  for (const int n : {1, 2, 4, 8}) {
    splits.push_back({n, 0.5, law(0, 0.1, 0.01, n)});
  }
  const auto model = fit_scaling(splits);
  ASSERT_TRUE(model);
  EXPECT_NEAR(model->compute, 0.5, 1e-9);
  EXPECT_NEAR(model->volume, 0.1, 1e-9);
  EXPECT_NEAR(model->latency, 0.01, 1e-9);
  EXPECT_NEAR(model->iteration(32).mean, law(0.5, 0.1, 0.01, 32), 1e-9);
}

TEST(Scaling, OneNodeAloneLeavesCommunicationInDoubt) {
  const std::vector<Split> splits = {{1, 0.5, 0}};
  const auto model = fit_scaling(splits);
  EXPECT_EQ(model->iteration(1).spread, 0.05);
  EXPECT_GT(model->iteration(2).spread, 0.3);
  EXPECT_GT(model->iteration(8).spread, 0.9);
}

TEST(Scaling, DoubtGrowsOnlyBeyondWhatWasMeasured) {
  const std::vector<Split> splits = {{1, 0.5, 0}, {4, 0.5, 0.1}};
  const auto model = fit_scaling(splits);
  EXPECT_EQ(model->iteration(4).spread, 0.05);
  EXPECT_GT(model->iteration(8).spread, 0.1);
  EXPECT_LT(model->iteration(8).spread, 0.2);
}

TEST(Scaling, StrongScalingDividesTheCompute) {
  const std::vector<Split> splits = {{1, 0.8, 0}, {2, 0.4, 0.1}};
  const auto model = fit_scaling(splits, true);
  EXPECT_NEAR(model->iteration(1).mean, 0.8, 1e-9);
  EXPECT_NEAR(model->iteration(2).mean, 0.4 + 0.1, 1e-9);
  EXPECT_NEAR(model->iteration(4).mean, 0.2 + 0.15, 1e-9);
}

TEST(Scaling, NothingMeasuredGivesNone) {
  EXPECT_FALSE(fit_scaling({}));
  const std::vector<Split> empty = {{1, 0, 0}};
  EXPECT_FALSE(fit_scaling(empty));
}

// Whatever was measured: no negative terms, never faster communication with
// more nodes.
TEST(Scaling, NoTermIsEverNegative) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> any(0, 1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<Split> splits;
    for (const int n : {1, 2, 3, 8}) {
      splits.push_back({n, 0.1 + any(random), any(random)});
    }
    const auto model = fit_scaling(splits);
    EXPECT_GE(model->volume, 0);
    EXPECT_GE(model->latency, 0);
    for (int n = 1; n < 64; ++n) {
      EXPECT_LE(model->iteration(n).mean, model->iteration(n + 1).mean);
    }
  }
}

}  // namespace
}  // namespace lockstep::economics
