#include "lockstep/economics/iterations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace lockstep::economics {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Iterations, NoneGivesNone) {
  EXPECT_FALSE(sum_up(std::vector<double>{}));
  EXPECT_FALSE(sum_up(std::vector<double>{0, -1, NAN}));
}

TEST(Iterations, OneIsTakenAndTold) {
  const auto summary = sum_up(std::vector<double>{0.25});
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->estimate.mean, 0.25);
  EXPECT_FALSE(summary->drifting);
  EXPECT_THAT(remarks(*summary), Contains(HasSubstr("factor of two")));
}

TEST(Iterations, TheVeryFirstIsLeftOut) {
  const auto summary = sum_up(std::vector<double>{5, 1, 1, 1, 1});
  EXPECT_EQ(summary->estimate.mean, 1);
  EXPECT_EQ(summary->present.size(), 4U);
}

TEST(Iterations, TheFirstAloneIsNoPhase) {
  std::vector<double> values(20, 0.1);
  values[0] = 2;
  const auto summary = sum_up(values);
  EXPECT_EQ(summary->phases.size(), 1U);
  EXPECT_EQ(summary->present.size(), 19U);
  EXPECT_THAT(remarks(*summary), IsEmpty());
}

TEST(Iterations, EqualOnesNeedNoRemark) {
  const auto summary = sum_up(std::vector<double>(20, 0.1));
  EXPECT_NEAR(summary->estimate.mean, 0.1, 1e-12);
  EXPECT_THAT(remarks(*summary), IsEmpty());
}

TEST(Iterations, AfterAPhaseChangeTheLastPhaseCounts) {
  std::vector<double> values(15, 0.1);
  values.resize(30, 0.4);
  const auto summary = sum_up(values);
  EXPECT_EQ(summary->phases.size(), 2U);
  EXPECT_NEAR(summary->estimate.mean, 0.4, 1e-12);
  EXPECT_THAT(remarks(*summary), Contains(HasSubstr("last phase counts")));
}

TEST(Iterations, SpikesStayInTheMean) {
  std::vector<double> values(41, 0.1);
  for (size_t i = 5; i < values.size(); i += 10) {
    values[i] = 1.1;
  }
  EXPECT_NEAR(sum_up(values)->estimate.mean, 0.2, 0.01);
}

TEST(Iterations, SlowingWithoutEndIsTold) {
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) {
    values.push_back(0.1 * std::exp(0.03 * i));
  }
  const auto summary = sum_up(values);
  EXPECT_TRUE(summary->drifting);
  EXPECT_NEAR(summary->drift, 0.03, 0.003);
  EXPECT_THAT(remarks(*summary), Contains(HasSubstr("slower by 3% each")));
}

TEST(Iterations, AClockThatJumpsIsToldAndLeftOut) {
  std::vector<double> values(20, 0.1);
  values[8] = 3600;  // an hour forward
  values[12] = -3599;
  const auto summary = sum_up(values);
  EXPECT_NEAR(summary->estimate.mean, 0.1, 1e-9);
  EXPECT_EQ(summary->jumps, 1U);
  EXPECT_EQ(summary->impossible, 1U);
  EXPECT_THAT(remarks(*summary), Contains(HasSubstr("clock jumped")));
  EXPECT_THAT(remarks(*summary), Contains(HasSubstr("no possible time")));
}

TEST(Iterations, NoiseAloneIsNoDrift) {
  std::mt19937 random(8);
  std::lognormal_distribution<double> noise(0, 0.3);
  int alarms = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < 40; ++i) {
      values.push_back(noise(random));
    }
    alarms += sum_up(values)->drifting ? 1 : 0;
  }
  EXPECT_LE(alarms, 8);
}

// The mean of few iterations, after a warm-up and with spikes, predicts the
// mean of the rest within the interval.
TEST(Iterations, TheIntervalHoldsTheRestOfTheRun) {
  std::mt19937 random(21);
  std::lognormal_distribution<double> noise(0, 0.1);
  std::bernoulli_distribution spikes(0.01);
  int held = 0;
  constexpr int kTrials = 500;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto next = [&](int i) {
      const double warm = i < 6 ? 2.5 : 1.0;
      return warm * noise(random) * (spikes(random) ? 6 : 1);
    };
    std::vector<double> probe;
    for (int i = 0; i < 32; ++i) {
      probe.push_back(next(i));
    }
    double sum = 0;
    for (int i = 32; i < 1032; ++i) {
      sum += next(i);
    }
    const Interval interval = sum_up(probe)->estimate.interval();
    const double truth = sum / 1000;
    held += interval.low <= truth && truth <= interval.high ? 1 : 0;
  }
  EXPECT_GE(static_cast<double>(held) / kTrials, 0.93);
}

}  // namespace
}  // namespace lockstep::economics
