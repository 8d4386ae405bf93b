#include "lockstep/commands/sights.h"

#include <gtest/gtest.h>

namespace lockstep::commands {
namespace {

wire::Event iteration(
    int rank,
    int64_t step,
    int64_t samples,
    double compute,
    double wait) {
  wire::Iteration one;
  one.step = step;
  one.samples = samples;
  one.compute = compute;
  one.wait = wait;
  one.communication = .01;
  one.total = compute + wait + .01;
  return {
      .time = 100 + static_cast<double>(step),
      .rank = rank,
      .node = "n",
      .body = one};
}

TEST(Sights, ANodesOwnTimeIsWithoutItsWait) {
  Sights sights;
  for (int64_t step = 1; step <= 9; ++step) {
    sights.take(iteration(0, step, 16, .16, .16));
    sights.take(iteration(1, step, 16, .32, 0));
  }
  const auto look = sights.look(3, 2);
  EXPECT_EQ(look.steps, 7);
  EXPECT_NEAR(look.nodes[0].compute, .01, 1e-9);
  EXPECT_NEAR(look.nodes[1].compute, .02, 1e-9);
  EXPECT_NEAR(look.communication, .01, 1e-9);
  EXPECT_EQ(sights.last_step(), 9);
  EXPECT_EQ(sights.first_time(), 101);
}

TEST(Sights, RanksOfANodeWorkTogether) {
  Sights sights(2);
  for (int rank = 0; rank < 4; ++rank) {
    sights.take(iteration(rank, 1, 8, rank < 2 ? .08 : .24, .01));
  }
  const auto look = sights.look(0, 2);
  EXPECT_NEAR(look.nodes[0].compute, .08 / 16, 1e-9);
  EXPECT_NEAR(look.nodes[1].compute, .24 / 16, 1e-9);
}

TEST(Sights, StepsThatNotAllToldAreLeftOut) {
  Sights sights;
  sights.take(iteration(0, 1, 8, .1, 0));
  sights.take(iteration(0, 2, 8, .1, 0));
  sights.take(iteration(1, 2, 8, .1, 0));
  EXPECT_EQ(sights.look(0, 2).steps, 1);
}

TEST(Sights, ProgramsThatHideTheirWaitTellNothing) {
  Sights sights;
  for (int rank = 0; rank < 2; ++rank) {
    auto event = iteration(rank, 1, 8, .3, 0);
    std::get<wire::Iteration>(event.body).communication = 0;
    sights.take(event);
  }
  const auto look = sights.look(0, 2);
  EXPECT_EQ(look.nodes[0].compute, 0);
  EXPECT_EQ(look.nodes[1].compute, 0);
}

TEST(Sights, TheWholeRunIsKnownFromItsInit) {
  Sights sights;
  EXPECT_FALSE(sights.total_steps());
  wire::Init init;
  init.facts["total_steps"] = "120";
  sights.take({.time = 1, .rank = 0, .node = "n", .body = init});
  EXPECT_EQ(sights.total_steps(), 120);
}

}  // namespace
}  // namespace lockstep::commands
