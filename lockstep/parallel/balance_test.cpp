#include "lockstep/parallel/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

namespace lockstep::parallel {
namespace {

using Shares = std::vector<int64_t>;

int64_t sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

// Machines that need `overhead + samples / speed` seconds, give or take.
struct Machines {
  std::vector<double> speeds;
  double overhead = 0;
  double noise = 0;
  std::mt19937_64 random{7};

  std::vector<double> step(const Shares& shares) {
    std::normal_distribution<double> normal(0, 1);
    std::vector<double> seconds;
    for (size_t i = 0; i < shares.size(); ++i) {
      const double exact =
          overhead + static_cast<double>(shares[i]) / speeds[i];
      seconds.push_back(exact * std::exp(noise * normal(random)));
    }
    return seconds;
  }
  // Speed of all together over the sum of the speeds, without overhead.
  double use(const Shares& shares) const {
    double longest = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      longest = std::max(longest, static_cast<double>(shares[i]) / speeds[i]);
    }
    const double all = std::accumulate(speeds.begin(), speeds.end(), 0.);
    return static_cast<double>(sum(shares)) / longest / all;
  }
};

int run(Balance& balance, Machines& machines, int steps) {
  int changes = 0;
  for (int i = 0; i < steps; ++i) {
    changes += balance.observe(machines.step(balance.shares())) ? 1 : 0;
  }
  return changes;
}

TEST(SplitBatch, FollowsSpeeds) {
  EXPECT_EQ(split_batch(70, std::vector{1., .4}), (Shares{50, 20}));
  EXPECT_EQ(split_batch(70, std::vector{1., .5, .25}), (Shares{40, 20, 10}));
  EXPECT_EQ(split_batch(7, std::vector{1., 1., 1.}), (Shares{3, 2, 2}));
}

TEST(SplitBatch, NobodyHasNothing) {
  EXPECT_EQ(split_batch(4, std::vector{1., 1e-9, 1e-9}), (Shares{2, 1, 1}));
  EXPECT_EQ(split_batch(3, std::vector{1e9, 1., 5.}), (Shares{1, 1, 1}));
}

TEST(SplitBatch, IsNeverWorseThanAnyMoveOfOneSample) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> speed(.05, 4);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> speeds(1 + random() % 6);
    for (double& value : speeds) {
      value = speed(random);
    }
    const auto batch = static_cast<int64_t>(speeds.size() + random() % 200);
    const Machines machines{speeds};
    const Shares shares = split_batch(batch, speeds);
    ASSERT_EQ(sum(shares), batch);
    for (size_t from = 0; from < shares.size(); ++from) {
      ASSERT_GE(shares[from], 1);
      for (size_t to = 0; to < shares.size(); ++to) {
        if (from == to || shares[from] == 1) {
          continue;
        }
        Shares moved = shares;
        --moved[from];
        ++moved[to];
        EXPECT_LE(machines.use(moved), machines.use(shares) * (1 + 1e-12));
      }
    }
  }
}

TEST(Balance, BeginsEqualAndRefusesTooSmallABatch) {
  EXPECT_EQ(Balance(64, 2).shares(), (Shares{32, 32}));
  EXPECT_THROW(Balance(2, 3), std::invalid_argument);
  EXPECT_THROW(Balance(2, 0), std::invalid_argument);
}

TEST(Balance, ReachesTheSumOfTheSpeeds) {
  for (const auto& speeds :
       {std::vector{100., 40.}, std::vector{100., 50., 25.}}) {
    Machines machines{speeds, 0, .03};
    Balance balance(70, speeds.size());
    run(balance, machines, 20);
    EXPECT_GT(machines.use(balance.shares()), .92);
  }
}

TEST(Balance, BalancesWhatAStepCostsBesideItsSamples) {
  Machines machines{{100., 40.}, .2, 0};
  Balance balance(140, 2);
  run(balance, machines, 40);
  const auto seconds = machines.step(balance.shares());
  EXPECT_NEAR(seconds[0] / seconds[1], 1, .04);
}

TEST(Balance, FollowsWithinTwentySteps) {
  Machines machines{{100., 100.}, .02, .03};
  Balance balance(64, 2);
  EXPECT_LE(run(balance, machines, 100), 1);
  EXPECT_GT(machines.use(balance.shares()), .9);
  machines.speeds[1] = 30;
  run(balance, machines, 20);
  EXPECT_GT(machines.use(balance.shares()), .9);
  machines.speeds[1] = 100;  // and back
  run(balance, machines, 20);
  EXPECT_GT(machines.use(balance.shares()), .9);
}

TEST(Balance, DoesNotFlapOnNoise) {
  for (const double noise : {.01, .05, .15, .4}) {
    Machines machines{{100., 60., 80.}, .01, noise};
    Balance balance(96, 3);
    run(balance, machines, 40);
    EXPECT_LE(run(balance, machines, 400), noise < .1 ? 12 : 70) << noise;
  }
}

TEST(Balance, LeavesOutTimesThatAreNone) {
  Balance balance(64, 2);
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(balance.observe(std::vector{1., nothing}));
    EXPECT_FALSE(balance.observe(std::vector{1., -1.}));
    EXPECT_FALSE(balance.observe(std::vector{1., 0.}));
    EXPECT_FALSE(balance.observe(std::vector{1.}));
  }
  EXPECT_EQ(balance.shares(), (Shares{32, 32}));
}

}  // namespace
}  // namespace lockstep::parallel
