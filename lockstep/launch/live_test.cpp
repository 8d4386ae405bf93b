#include "lockstep/launch/live.h"

#include <gtest/gtest.h>

#include "lockstep/launch/progress.h"

namespace lockstep::launch {
namespace {

wire::Event iteration(int rank, double time, int64_t step, int64_t samples) {
  wire::Iteration done;
  done.step = step;
  done.samples = samples;
  return {time, rank, "a", done};
}

TEST(LiveTracker, ShowsNoRateFromTheFirstIterations) {
  LiveTracker tracker;
  tracker.take(iteration(0, 10, 1, 16));
  tracker.take(iteration(1, 10.001, 1, 16));
  EXPECT_TRUE(tracker.state().any_iteration);
  EXPECT_EQ(tracker.state().samples_per_second, 0);
  tracker.take(iteration(0, 10.1, 2, 16));
  tracker.take(iteration(0, 10.2, 3, 16));
  EXPECT_EQ(tracker.state().samples_per_second, 0) << "0.2 s are too short";
  for (int step = 4; step <= 7; ++step) {
    tracker.take(iteration(0, 9.9 + 0.1 * step, step, 16));
  }
  EXPECT_NEAR(tracker.state().samples_per_second, 160, 1e-6);
}

TEST(LiveTracker, KnowsHowLargeACheckpointWillBe) {
  LiveTracker tracker;
  wire::Event event;
  event.body = wire::Init{"x", 2, 1.0, {{"checkpoint_bytes", "345678901234"}}};
  tracker.take(event);
  EXPECT_EQ(tracker.state().checkpoint_bytes, 345'678'901'234);
}

TEST(LiveTracker, AddsTheRatesOfRanksWhoseClocksDiffer) {
  LiveTracker tracker;
  for (int step = 1; step <= 40; ++step) {
    tracker.take(iteration(0, 100 + step, step, 8));
    tracker.take(iteration(1, 3700 + 0.5 * step, step, 8));
  }
  EXPECT_NEAR(tracker.state().samples_per_second, 8 + 16, 1e-6);
}

TEST(LiveTracker, KnowsTheRateOfSlowSteps) {
  LiveTracker tracker;
  tracker.take(iteration(0, 0, 1, 60));
  tracker.take(iteration(0, 60, 2, 60));
  EXPECT_EQ(tracker.state().samples_per_second, 0);
  tracker.take(iteration(0, 120, 3, 60));
  tracker.take(iteration(0, 180, 4, 60));
  EXPECT_NEAR(tracker.state().samples_per_second, 1, 1e-6);
  EXPECT_NEAR(tracker.state().seconds_per_step, 60, 1e-6);
}

TEST(LiveTracker, TheFirstLimitDecidesWhenARunEnds) {
  LiveTracker tracker;
  wire::Init init;
  init.facts = {{"total_steps", "1000"}, {"seconds_left", "30.5"}};
  tracker.take({100, 0, "a", init});
  EXPECT_FALSE(tracker.state().seconds_left);
  tracker.take(iteration(0, 101, 1, 8));
  tracker.take(iteration(0, 102, 2, 8));
  ASSERT_TRUE(tracker.state().seconds_left);
  EXPECT_NEAR(*tracker.state().seconds_left, 28.5, 1e-6);
  const auto text = [&] {
    return progress_text(tracker.state(), 1, std::chrono::seconds(2), {});
  };
  EXPECT_NE(text().find("eta 29.0 s"), std::string::npos) << text();
  tracker.take(iteration(0, 103, 997, 8));
  EXPECT_NE(text().find("eta 3.0 s"), std::string::npos) << text();
  tracker.take(iteration(0, 140, 998, 8));
  EXPECT_EQ(*tracker.state().seconds_left, 0);
}

TEST(LiveTracker, StartsAgain) {
  LiveTracker tracker;
  tracker.rank_started();
  tracker.take(iteration(0, 0, 5, 60));
  tracker.restart();
  EXPECT_EQ(tracker.state().ranks_started, 0);
  EXPECT_EQ(tracker.state().step, 0);
  tracker.take(iteration(0, 0, 3, 60));
  EXPECT_EQ(tracker.state().step, 3);
}

}  // namespace
}  // namespace lockstep::launch
