#include "lockstep/economics/plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace lockstep::economics {
namespace {

PlanOffer offer(
    const std::string& name,
    double price,
    double seconds,
    int most_nodes = 1) {
  PlanOffer one;
  one.machine = {.name = name, .dollars_per_hour = price};
  one.scaling = {.compute = seconds, .spread = 0.05, .measured = 8};
  one.most_nodes = most_nodes;
  return one;
}

constexpr PlanWork kWork{.samples = 36000, .samples_a_node = 10};

TEST(Plan, FindsTheCheapestAndTheFastest) {
  const std::vector<PlanOffer> offers = {
      offer("slow", 0.1, 2), offer("fast", 1, 0.5), offer("bad", 2, 2)};
  const Plan plan = make_plan(offers, kWork);
  ASSERT_EQ(plan.rows.size(), 3U);
  EXPECT_EQ(plan.rows[*plan.cheapest].offer, 0U);
  EXPECT_EQ(plan.rows[*plan.fastest].offer, 1U);
  EXPECT_EQ(plan.front, (std::vector<size_t>{0, 1}));
  EXPECT_FALSE(plan.rows[2].on_front);
  // 3600 iterations of 2 s at $0.1: $0.2.
  EXPECT_NEAR(plan.rows[0].prediction.dollars.value, 0.2, 1e-9);
  EXPECT_NEAR(plan.rows[0].samples_per_dollar, 180000, 1e-3);
}

TEST(Plan, LimitsHoldForTheUpperEnd) {
  const std::vector<PlanOffer> offers = {
      offer("slow", 0.1, 2), offer("fast", 1, 0.5)};
  // 7200 s +- 10%: 7300 is not enough to be sure.
  Plan plan = make_plan(offers, kWork, {.max_seconds = 7300});
  EXPECT_EQ(plan.rows[*plan.cheapest].offer, 1U);
  plan = make_plan(offers, kWork, {.max_seconds = 7300, .surely = false});
  EXPECT_EQ(plan.rows[*plan.cheapest].offer, 0U);
}

TEST(Plan, SaysWhatDoesNotFit) {
  const std::vector<PlanOffer> offers = {offer("slow", 0.1, 2)};
  const PlanLimits limits{.max_seconds = 60, .budget = 0.01};
  const Plan plan = make_plan(offers, kWork, limits);
  EXPECT_FALSE(plan.cheapest);
  const std::string verdict = plan_verdict(plan, offers, limits);
  EXPECT_NE(verdict.find("nothing fits"), std::string::npos);
  EXPECT_NE(verdict.find("slow"), std::string::npos) << verdict;
  EXPECT_NE(verdict.find("$0.010"), std::string::npos) << verdict;
}

TEST(Plan, WithoutAnIterationThereAreNoRows) {
  const std::vector<PlanOffer> offers = {offer("none", 1, 0)};
  EXPECT_TRUE(make_plan(offers, kWork).rows.empty());
}

TEST(Plan, WithoutPricesThereIsTimeAlone) {
  const std::vector<PlanOffer> offers = {offer("a", 0, 2), offer("b", 0, 1)};
  Plan plan = make_plan(offers, kWork, {.max_seconds = 5000});
  EXPECT_EQ(plan.rows.size(), 2U);
  EXPECT_FALSE(plan.cheapest);
  EXPECT_EQ(plan.rows[*plan.fastest].offer, 1U);
  const std::string verdict = plan_verdict(plan, offers, {});
  EXPECT_NE(verdict.find("take 1 x b"), std::string::npos) << verdict;
  EXPECT_NE(verdict.find("without prices"), std::string::npos) << verdict;
  const PlanLimits limits{.max_seconds = 10, .budget = 1};
  plan = make_plan(offers, kWork, limits);
  EXPECT_FALSE(plan.fastest);
  EXPECT_NE(
      plan_verdict(plan, offers, limits).find("the fastest of all is 1 x b"),
      std::string::npos);
}

TEST(Plan, AnEarlierPhaseADriftAndEpochsEndsCount) {
  std::vector<PlanOffer> offers = {offer("a", 1, 2)};
  offers[0].early_samples = 6000;  // 600 of 3600 iterations, of 6 s
  offers[0].early_ratio = 3;
  PlanWork work = kWork;
  work.epoch_ends = 4;
  offers[0].epoch_end = {.iterations = 1, .mean = 100, .spread = 0.1};
  Plan plan = make_plan(offers, work);
  EXPECT_NEAR(
      plan.rows[0].prediction.seconds.value, 600 * 6 + 3000 * 2 + 400, 1e-6);
  const double high = plan.rows[0].prediction.seconds.high;
  offers[0].drift = 0.001;
  plan = make_plan(offers, work);
  EXPECT_GT(plan.rows[0].prediction.seconds.high, 1.5 * high);
}

TEST(Plan, AMachineMayHaveItsOwnBatch) {
  std::vector<PlanOffer> offers = {offer("one", 1, 2), offer("two", 1, 2)};
  offers[1].samples_a_node = 20;
  const Plan plan = make_plan(offers, kWork);
  EXPECT_NEAR(plan.rows[0].prediction.seconds.value, 7200, 1e-6);
  EXPECT_NEAR(plan.rows[1].prediction.seconds.value, 3600, 1e-6);
}

TEST(Plan, MoreNodesShareTheSamples) {
  std::vector<PlanOffer> offers = {offer("m", 1, 1, 4)};
  offers[0].scaling.volume = 0.1;
  const Plan plan = make_plan(offers, kWork);
  ASSERT_EQ(plan.rows.size(), 4U);
  EXPECT_EQ(plan.rows[3].iterations, 900);
  EXPECT_NEAR(plan.rows[3].iteration.mean, 1.15, 1e-9);
  EXPECT_EQ(plan.rows[*plan.cheapest].nodes, 1);
  EXPECT_EQ(plan.rows[*plan.fastest].nodes, 4);
}

// The front holds exactly those that none beats in both, whatever the offers.
TEST(Plan, TheFrontIsTheFront) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> any(0, 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<PlanOffer> offers;
    for (int i = 0; i < 12; ++i) {
      offers.push_back(offer("m", any(random), any(random), 3));
    }
    const Plan plan = make_plan(offers, kWork);
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      bool beaten = false;
      for (const PlanRow& other : plan.rows) {
        const auto& a = other.prediction;
        const auto& b = plan.rows[i].prediction;
        beaten = beaten || (a.dollars.value <= b.dollars.value &&
                            a.seconds.value <= b.seconds.value &&
                            (a.dollars.value < b.dollars.value ||
                             a.seconds.value < b.seconds.value));
      }
      EXPECT_EQ(plan.rows[i].on_front, !beaten);
    }
    EXPECT_EQ(*plan.cheapest, plan.front.front());
  }
}

// The number is in bench; here only that it is not quadratic.
TEST(Plan, TenThousandConfigurationsAreQuick) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> any(0, 1);
  std::vector<PlanOffer> offers;
  for (int i = 0; i < 625; ++i) {
    offers.push_back(offer("m", any(random), any(random), 16));
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(make_plan(offers, kWork).rows.size(), 10000U);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, std::chrono::seconds(2));
}

}  // namespace
}  // namespace lockstep::economics
