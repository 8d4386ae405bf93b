#include "lockstep/economics/replay.h"

#include <gtest/gtest.h>

#include "lockstep/economics/made_runs_test.h"

namespace lockstep::economics {
namespace {

TEST(Recording, SellsOneStageAfterTheOther) {
  Recording recording(
      std::vector<Recording::Candidate>{{2.0, {10.0, 8.0, 6.0, 4.0, 3.0}}});
  std::vector<Block> blocks;
  EXPECT_EQ(recording.bought(0), 0U);
  ASSERT_TRUE(recording.buy(0, blocks));
  EXPECT_EQ(blocks[0].iterations, 1);
  EXPECT_EQ(blocks[0].seconds, 10);
  ASSERT_TRUE(recording.buy(0, blocks));  // 2-5 has a mean of 8
  EXPECT_EQ(blocks[1].iterations, 3);
  EXPECT_NEAR(blocks[1].seconds, (4 * 8.0 - 10) / 3, 1e-12);
  ASSERT_TRUE(recording.buy(0, blocks));  // 2-10 has a mean of 6
  EXPECT_EQ(blocks[2].iterations, 5);
  EXPECT_NEAR(blocks[2].seconds, (9 * 6.0 - 4 * 8.0) / 5, 1e-12);
  ASSERT_TRUE(recording.buy(0, blocks));
  ASSERT_TRUE(recording.buy(0, blocks));  // 33-64
  EXPECT_EQ(blocks[4].iterations, 32);
  EXPECT_NEAR(blocks[4].seconds, 2, 1e-12);
  EXPECT_FALSE(recording.buy(0, blocks));
  EXPECT_EQ(recording.bought(0), 5U);
}

TEST(Recording, AStageThatWasNotRecordedIsPassedOver) {
  constexpr auto kNone = std::nullopt;
  const Stages stages = {kNone, 4.0, kNone, 2.0, kNone};
  Recording recording(std::vector<Recording::Candidate>{{1.0, stages}});
  std::vector<Block> blocks;
  ASSERT_TRUE(recording.buy(0, blocks));  // 2-5
  EXPECT_EQ(recording.bought(0), 2U);
  EXPECT_EQ(blocks[0].iterations, 4);
  EXPECT_EQ(blocks[0].seconds, 4);
  ASSERT_TRUE(recording.buy(0, blocks));  // 6-32
  EXPECT_EQ(recording.bought(0), 4U);
  EXPECT_EQ(blocks[1].iterations, 27);
  EXPECT_NEAR(blocks[1].seconds, (32 * 2.0 - 5 * 4.0) / 27, 1e-12);
  EXPECT_FALSE(recording.buy(0, blocks));
}

TEST(Replay, AnExperimentWithoutAStageIsNamed) {
  const std::vector<RecordedRun> runs = {
      {"none", {1.0, {}}, 1, 100},
      {"some", {1.0, {1.0, 1.0, 1.0, 1.0, 1.0}}, 1, 100}};
  const ReplayScore score = replay(runs);
  EXPECT_EQ(score.experiments, 1U);
  EXPECT_EQ(score.left_out, (std::vector<std::string>{"none"}));
}

TEST(Recording, MeansThatContradictEachOtherStayPositive) {
  Recording recording(
      std::vector<Recording::Candidate>{{1.0, {100.0, 10.0, 1.0, 0.1, 0.01}}});
  std::vector<Block> blocks;
  while (recording.buy(0, blocks)) {}
  ASSERT_EQ(blocks.size(), 5U);
  for (const Block& block : blocks) {
    EXPECT_GT(block.seconds, 0);
  }
}

TEST(Replay, OneOfOneIsRightAndWithoutRegret) {
  RecordedRun run{"x", {1.0, {1.0, 1.0, 1.0, 1.0, 1.0}}, 1, 100};
  const ReplayScore score = replay(std::span(&run, 1));
  EXPECT_EQ(score.experiments, 1U);
  EXPECT_EQ(score.cheapest, 1);
  EXPECT_EQ(score.fastest, 1);
  EXPECT_EQ(score.max_regret, 0);
  EXPECT_NEAR(score.probe_cost, 2.0 / 64, 1e-12);
}

TEST(Replay, RegretIsWhatThePickCostsBeyondTheCheapest) {
  // The first looks cheaper in all stages and is 25% dearer in truth.
  const std::vector<RecordedRun> runs = {
      {"x", {1.0, {1.0, 1.0, 1.0, 1.0, 1.0}}, 2.5, 100},
      {"x", {1.0, {1.2, 1.2, 1.2, 1.2, 1.2}}, 2.0, 100}};
  const ReplayScore score = replay(runs);
  EXPECT_EQ(score.cheapest, 0);
  EXPECT_NEAR(score.max_regret, 0.25, 1e-12);
  EXPECT_NEAR(score.mean_regret, 0.25, 1e-12);
}

TEST(Replay, TheTruthChangesNoPick) {
  std::vector<RecordedRun> runs = make_runs({.experiments = 10}, 1);
  const double before = replay(runs).probe_cost;
  for (RecordedRun& run : runs) {
    run.mean = 1 / run.mean;
  }
  EXPECT_EQ(replay(runs).probe_cost, before);
}

// What may be lost against the first 64 everywhere, and what it may cost.
struct World {
  const char* name;
  MadeWorld made;
  double cheapest;  // share less
  double regret;    // more, in the mean
  double probe_cost;
};

class MadeRecordings : public testing::TestWithParam<World> {};

// Nearly as good a pick as from the first 64 everywhere, at a fraction of the
// dollars. Worlds whose first iterations are much longer than the rest cost
// more, since every stage begins with them; so do fields of two or three.
TEST_P(MadeRecordings, NearlyAsGoodAsMeasuringEverything) {
  const World& world = GetParam();
  for (const int seed : {1, 2, 3}) {
    const auto runs = make_runs(world.made, seed);
    const ReplayScore score = replay(runs);
    const ReplayScore full = first_64_everywhere(runs);
    EXPECT_NEAR(full.probe_cost, 1, 1e-9);
    EXPECT_LE(score.probe_cost, world.probe_cost) << "seed " << seed;
    EXPECT_GE(score.cheapest, full.cheapest - world.cheapest)
        << "seed " << seed;
    EXPECT_LE(score.mean_regret, full.mean_regret + world.regret)
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    MadeRecordings,
    testing::Values(
        World{
            "steady",
            {.noise = 0.02, .heavy = 0, .warm_up = 0.2},
            0.03,
            0.001,
            0.25},
        World{"usual", {}, 0.04, 0.006, 0.27},
        World{
            "noisy",
            {.noise = 0.4, .heavy = 0.05, .spike = 6},
            0.06,
            0.015,
            0.36},
        World{
            "long_warm_up",
            {.warm_up = 4, .warm_up_length = 10},
            0.06,
            0.012,
            0.45},
        World{
            "own_warm_ups",
            {.warm_up = 2, .warm_up_length = 3, .warm_up_own = 1},
            0.08,
            0.02,
            0.38},
        World{
            "close_race",
            {.speed_spread = 0.3, .price_spread = 0.1},
            0.08,
            0.012,
            0.40},
        World{
            "few_machines",
            {.least_machines = 2, .most_machines = 4},
            0.05,
            0.01,
            0.5},
        World{"late_phase", {.late_phase = 0.3}, 0.05, 0.012, 0.27}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::economics
