#include "lockstep/economics/estimate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::economics {
namespace {

TEST(Estimate, NothingSeenGivesNone) {
  EXPECT_FALSE(estimate(std::span<const double>()));
  const std::array unusable = {
      0.0,
      -1.0,
      std::numeric_limits<double>::quiet_NaN(),
      std::numeric_limits<double>::infinity()};
  EXPECT_FALSE(estimate(std::span<const double>(unusable)));
}

TEST(Estimate, OneIterationIsTrustedToAFactorOfTwo) {
  const std::array one = {0.5};
  const auto known = estimate(std::span<const double>(one));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->mean, 0.5);
  EXPECT_GT(known->spread, 0.69);
  EXPECT_GT(known->interval(1).high, 1.0);
  EXPECT_LT(known->interval(1).low, 0.25);
}

TEST(Estimate, UnusableValuesArePassedOver) {
  const std::array values = {1.0, -3.0, 1.0, 0.0};
  const auto known = estimate(std::span<const double>(values));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->iterations, 2);
  EXPECT_EQ(known->mean, 1);
}

TEST(Estimate, ABlockCountsForItsIterations) {
  const std::array<Block, 2> blocks = {{{1, 4.0}, {3, 2.0}}};
  const auto known = estimate(std::span<const Block>(blocks));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->iterations, 4);
  EXPECT_DOUBLE_EQ(known->mean, 2.5);
}

// The doubt never grows with more equal values, and never falls below what
// early iterations cannot know.
TEST(Estimate, DoubtFadesToItsFloor) {
  std::vector<double> values;
  double before = 10;
  for (int i = 0; i < 200; ++i) {
    values.push_back(0.1);
    const auto known = estimate(std::span<const double>(values));
    EXPECT_LT(known->spread, before);
    before = known->spread;
  }
  EXPECT_NEAR(before, Caution().floor, 0.002);
}

TEST(Estimate, ScaleChangesNothingButTheMean) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> made(0, 0.4);
  std::vector<double> seconds;
  std::vector<double> milliseconds;
  for (int i = 0; i < 12; ++i) {
    seconds.push_back(made(random));
    milliseconds.push_back(1000 * seconds.back());
  }
  const auto a = estimate(std::span<const double>(seconds));
  const auto b = estimate(std::span<const double>(milliseconds));
  EXPECT_NEAR(a->spread, b->spread, 1e-12);
  EXPECT_NEAR(1000 * a->mean, b->mean, 1e-9);
}

// With few values of skewed or heavy-tailed times the interval holds the true
// mean at least as often as it says.
TEST(Estimate, IntervalsHoldTheTruthAlsoWithFewValuesAndHeavyTails) {
  std::mt19937 random(11);
  for (const int count : {2, 4, 9, 32}) {
    for (const double sigma : {0.05, 0.3, 0.5}) {
      std::lognormal_distribution<double> body(0, sigma);
      std::bernoulli_distribution spikes(0.01);
      const double truth = std::exp(sigma * sigma / 2) * (0.99 + 0.01 * 5);
      int held = 0;
      constexpr int kTrials = 2000;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<double> values;
        for (int i = 0; i < count; ++i) {
          values.push_back(body(random) * (spikes(random) ? 5 : 1));
        }
        const Interval interval =
            estimate(std::span<const double>(values))->interval();
        held += interval.low <= truth && truth <= interval.high ? 1 : 0;
      }
      EXPECT_GE(static_cast<double>(held) / kTrials, 0.93)
          << count << " values, sigma " << sigma;
    }
  }
}

}  // namespace
}  // namespace lockstep::economics
