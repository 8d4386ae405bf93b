#include "lockstep/train/limits.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::train {
namespace {

TrainerConfig epochs(int64_t count) {
  TrainerConfig trainer;
  trainer.max_epochs = count;
  return trainer;
}

Progress at(int64_t step, int64_t epoch, int64_t samples) {
  Progress progress;
  progress.step = step;
  progress.epoch = epoch;
  progress.samples_in_epoch = samples;
  return progress;
}

TEST(Limits, TheSameRanksHaveTheSameLastStepWhereverTheyResume) {
  for (const int64_t accumulate : {1, 2, 5}) {
    TrainerConfig trainer = epochs(4);
    trainer.accumulate = accumulate;
    const EpochSize size = {12, 4};
    const int64_t steps = steps_per_epoch(trainer, size);
    for (int64_t step = 0; step < 4 * steps; ++step) {
      const int64_t done = step % steps * accumulate * size.batch_samples;
      EXPECT_EQ(
          total_steps(trainer, size, at(step, step / steps, done)), 4 * steps)
          << accumulate << " " << step;
    }
  }
}

// 48 samples: 12 steps of 4, 6 of 8, 24 of 2.
TEST(Limits, OtherRanksTrainTheEpochsThatAreLeft) {
  EXPECT_EQ(total_steps(epochs(4), {6, 8}, at(24, 2, 0)), 24 + 2 * 6);
  EXPECT_EQ(total_steps(epochs(3), {6, 8}, at(24, 2, 0)), 24 + 6);
  EXPECT_EQ(total_steps(epochs(4), {24, 2}, at(15, 1, 12)), 15 + 18 + 2 * 24);
  EXPECT_EQ(total_steps(epochs(2), {6, 8}, at(24, 2, 0)), 24);
}

TEST(Limits, StepsAreCountedFromTheBeginning) {
  TrainerConfig trainer = epochs(0);
  EXPECT_EQ(total_steps(trainer, {6, 8}, at(24, 2, 0)), 0);
  trainer.max_steps = 30;
  EXPECT_EQ(total_steps(trainer, {6, 8}, at(24, 2, 0)), 30);
  trainer.min_epochs = 4;
  EXPECT_EQ(total_steps(trainer, {6, 8}, at(24, 2, 0)), 36);
  trainer.max_epochs = 3;
  trainer.min_epochs = 0;
  EXPECT_EQ(total_steps(trainer, {6, 8}, at(24, 2, 0)), 30);
  trainer.max_steps = 100;
  EXPECT_EQ(total_steps(trainer, {6, 8}, at(24, 2, 0)), 30);
}

TEST(Limits, ThatCannotBeCountedAreNoLimits) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TrainerConfig trainer = epochs(999'999'999'999'999'999);
  EXPECT_EQ(total_steps(trainer, {12, 4}, {}), kMost);
  trainer.max_steps = 2;
  EXPECT_EQ(total_steps(trainer, {12, 4}, {}), 2);
  trainer = epochs(kMost);
  EXPECT_EQ(total_steps(trainer, {12, 4}, at(24, 2, 0)), kMost);
  trainer = epochs(2);
  trainer.accumulate = kMost;
  EXPECT_EQ(total_steps(trainer, {12, 4}, {}), 2);
}

TEST(Limits, TimeOfEarlierSittingsCounts) {
  TrainerConfig trainer = epochs(9);
  Progress progress = at(24, 2, 0);
  progress.seconds = 10;
  EXPECT_FALSE(is_out_of_time(trainer, progress));
  trainer.max_seconds = 10;
  EXPECT_TRUE(is_out_of_time(trainer, progress));
  trainer.min_epochs = 3;
  EXPECT_FALSE(is_out_of_time(trainer, progress));
}

}  // namespace
}  // namespace lockstep::train
