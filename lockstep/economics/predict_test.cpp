#include "lockstep/economics/predict.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::economics {
namespace {

constexpr Estimate kTenth{.iterations = 30, .mean = 0.1, .spread = 0.05};

TEST(Billing, StartedUnitsArePaidFor) {
  EXPECT_EQ(billed_seconds(10.2, {.unit = 1}), 11);
  EXPECT_EQ(billed_seconds(11, {.unit = 1}), 11);
  EXPECT_EQ(billed_seconds(3601, {.unit = 3600}), 7200);
  EXPECT_EQ(billed_seconds(5, {.unit = 1, .minimum = 60}), 60);
  EXPECT_EQ(billed_seconds(5.5, {.unit = 0}), 5.5);
}

TEST(Predict, IsTheSumOfItsParts) {
  const Machine machine{
      .name = "m",
      .dollars_per_hour = 3.6,
      .boot = 40,
      .setup = 20,
      .billing = {.unit = 1}};
  const Work work{.init = 3, .end = 2, .phases = {{1000, kTenth}}};
  const auto prediction = predict(machine, 2, work);
  ASSERT_TRUE(prediction);
  EXPECT_NEAR(prediction->seconds.value, 40 + 20 + 3 + 100 + 2, 1e-9);
  EXPECT_NEAR(prediction->dollars.value, 165 * 0.001 * 2, 1e-9);
  EXPECT_LT(prediction->seconds.low, 165);
  EXPECT_GT(prediction->seconds.high, 165);
  EXPECT_TRUE(prediction->priced);
}

TEST(Predict, PhasesAreSummed) {
  const Estimate slow{.iterations = 30, .mean = 0.4, .spread = 0.05};
  const Work work{.phases = {{500, kTenth}, {1500, slow}}};
  EXPECT_NEAR(predict({}, 1, work)->seconds.value, 50 + 600, 1e-9);
}

TEST(Predict, WithoutIterationsOrEstimateThereIsNone) {
  EXPECT_FALSE(predict({}, 1, {}));
  EXPECT_FALSE(predict({}, 1, {.phases = {{0, kTenth}}}));
  EXPECT_FALSE(predict({}, 1, {.phases = {{10, {}}}}));
  EXPECT_FALSE(predict({}, 0, {.phases = {{10, kTenth}}}));
}

TEST(Predict, WithoutAPriceTimeIsStillKnown) {
  const auto prediction = predict({}, 1, {.phases = {{10, kTenth}}});
  EXPECT_FALSE(prediction->priced);
  EXPECT_NEAR(prediction->seconds.value, 1, 1e-9);
}

TEST(Predict, ADriftThatGoesOnIsInTheUpperEnd) {
  const auto steady = predict({}, 1, {.phases = {{1000, kTenth, 0}}});
  const auto slowing = predict({}, 1, {.phases = {{1000, kTenth, 0.01}}});
  EXPECT_EQ(slowing->seconds.value, steady->seconds.value);
  EXPECT_EQ(slowing->seconds.low, steady->seconds.low);
  EXPECT_NEAR(slowing->seconds.high, 6 * steady->seconds.high, 1e-6);
}

TEST(Predict, InterruptionsArePaidForTwice) {
  const Machine spot{
      .dollars_per_hour = 1,
      .interruptions_per_hour = 0.1,
      .lost_per_interruption = 600};
  const Work work{.phases = {{36000, kTenth}}};  // an hour
  // Sixty of 3600 seconds are lost: 3600 / (1 - 1/60).
  EXPECT_NEAR(predict(spot, 1, work)->seconds.value, 3600 / (1 - 1 / 60.0), 1);
  EXPECT_GT(
      predict(spot, 4, work)->seconds.value,
      predict(spot, 1, work)->seconds.value);
}

// More of anything never takes less or costs less; the ends enclose the value.
TEST(Predict, IsMonotone) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> any(0.01, 10);
  for (int trial = 0; trial < 2000; ++trial) {
    const Machine machine{
        .dollars_per_hour = any(random),
        .boot = any(random),
        .setup = any(random),
        .billing = {.unit = any(random), .minimum = any(random)}};
    Work work{
        .init = any(random),
        .end = any(random),
        .phases = {
            {100 * any(random),
             {.iterations = 5, .mean = any(random), .spread = 0.1}}}};
    const auto first = *predict(machine, 2, work);
    EXPECT_LE(first.seconds.low, first.seconds.value);
    EXPECT_LE(first.seconds.value, first.seconds.high);
    EXPECT_LE(first.dollars.low, first.dollars.value);
    EXPECT_LE(first.dollars.value, first.dollars.high);
    work.phases[0].iterations *= 1.5;
    const auto longer = *predict(machine, 2, work);
    EXPECT_GT(longer.seconds.value, first.seconds.value);
    EXPECT_GE(longer.dollars.value, first.dollars.value);
    EXPECT_GT(predict(machine, 3, work)->dollars.value, longer.dollars.value);
  }
}

}  // namespace
}  // namespace lockstep::economics
