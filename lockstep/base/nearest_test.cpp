#include "lockstep/base/nearest.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kKeys = {
    "trainer.max_epochs",
    "trainer.max_steps",
    "data.batch_size",
    "seed"};

TEST(NearestNames, FindsTyposAndMissingPrefixes) {
  EXPECT_EQ(nearest_names("data.batchsize", kKeys).front(), "data.batch_size");
  EXPECT_EQ(nearest_names("max_epochs", kKeys).front(), "trainer.max_epochs");
  EXPECT_EQ(nearest_names("sede", kKeys).front(), "seed");
}

TEST(Suggest, ListsAllWhenNothingIsNear) {
  EXPECT_EQ(suggest("zzz", {"a_long", "b_long"}), "accepted: a_long, b_long");
  EXPECT_EQ(suggest("sed", {"seed"}), "did you mean 'seed'?");
}

}  // namespace
}  // namespace lockstep
