#include "lockstep/train/config.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(TrainConfig, GlobalBatchIsSplitOverRanksAndAccumulation) {
  TrainerConfig trainer;
  DataConfig data;
  trainer.accumulate = 2;
  data.global_batch_size = 64;
  ASSERT_TRUE(check_and_complete(trainer, data, 4));
  EXPECT_EQ(data.batch_size, 8);
  data.global_batch_size = 65;
  EXPECT_NE(
      check_and_complete(trainer, data, 4)
          .error()
          .message()
          .find("multiple of 8"),
      std::string::npos);
}

TEST(TrainConfig, RefusesAWorldThatDoesNotMatch) {
  TrainerConfig trainer;
  DataConfig data;
  trainer.devices = 4;
  const auto checked = check_and_complete(trainer, data, 2);
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message().find("started 2"), std::string::npos);
  trainer.devices = 0;
  trainer.strategy = "single";
  EXPECT_FALSE(check_and_complete(trainer, data, 2));
}

TEST(TrainConfig, RefusesToTrainForEver) {
  TrainerConfig trainer;
  DataConfig data;
  trainer.max_epochs = 0;
  EXPECT_FALSE(check_and_complete(trainer, data, 1));
  trainer.max_seconds = 5;
  EXPECT_TRUE(check_and_complete(trainer, data, 1));
}

}  // namespace
}  // namespace lockstep::train
