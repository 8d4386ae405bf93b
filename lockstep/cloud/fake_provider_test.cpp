#include "lockstep/cloud/fake_provider.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/fallback.h"

namespace lockstep::cloud {
namespace {

const Tags kTags = {{std::string(kClusterTag), "c"}};

LaunchOrder order(const std::string& token, int count = 1) {
  LaunchOrder one;
  one.token = token;
  one.type = "c5.xlarge";
  one.image = "image-1";
  one.count = count;
  one.market = Market::kSpot;
  one.tags = kTags;
  return one;
}

TEST(FakeProvider, ALostAnswerIsFoundAgainByItsToken) {
  os::FakeClock clock;
  FakeProvider cloud(clock);
  cloud.lose_answer("launch");
  const auto lost = cloud.launch(order("t", 2));
  ASSERT_FALSE(lost);
  EXPECT_EQ(failure_of(lost.error()), Failure::kTransient);
  EXPECT_EQ(cloud.num_live(), 2U);
  EXPECT_EQ(cloud.launch(order("t", 2))->size(), 2U);
  EXPECT_EQ(cloud.num_launched(), 2U);
  EXPECT_EQ(
      failure_of(cloud.launch(order("t", 3)).error()), Failure::kBadRequest);
}

TEST(FakeProvider, WhatWasJustMadeIsNotSeen) {
  os::FakeClock clock;
  FakeProvider cloud(clock);
  cloud.set_blindness(std::chrono::seconds(5));
  ASSERT_TRUE(cloud.launch(order("t")));
  EXPECT_TRUE(cloud.instances({})->empty());
  clock.advance(std::chrono::seconds(6));
  EXPECT_EQ(cloud.instances({})->size(), 1U);
}

TEST(FakeProvider, AllThatAMachineBringsGoesWithIt) {
  os::FakeClock clock;
  FakeProvider cloud(clock);
  ASSERT_TRUE(cloud.launch(order("t")));
  ASSERT_TRUE(cloud.key_pair({"k", "ssh-ed25519 AAAA", kTags}));
  const auto count = [&](ResourceKind kind) {
    const auto found = cloud.resources(kind, {kTags, {}});
    return std::ranges::count(*found, false, &Resource::is_over);
  };
  EXPECT_EQ(count(ResourceKind::kInstance), 1);
  EXPECT_EQ(count(ResourceKind::kVolume), 1);
  EXPECT_EQ(count(ResourceKind::kSpotRequest), 1);
  ASSERT_TRUE(cloud.terminate({"i-1", "i-77"}));
  ASSERT_TRUE(cloud.remove(ResourceKind::kKeyPair, "k"));
  for (const ResourceKind kind : kResourceKinds) {
    EXPECT_EQ(count(kind), 0) << to_string(kind);
  }
}

TEST(FakeProvider, FailsAsToldAndRunsOutOfRoom) {
  os::FakeClock clock;
  FakeProvider cloud(clock);
  cloud.fail("launch", cloud_error(Failure::kThrottled, "slowly"), 2);
  EXPECT_FALSE(cloud.launch(order("t")));
  EXPECT_FALSE(cloud.launch(order("t")));
  EXPECT_EQ(cloud.num_launched(), 0U);
  cloud.set_capacity("c5.xlarge", 1);
  LaunchPlace first, second;
  first.type = "c5.xlarge";
  second.type = "m5.xlarge";
  ASSERT_TRUE(cloud.launch(order("t")));
  const auto elsewhere =
      launch_anywhere(cloud, order("u"), {first, second}, {});
  ASSERT_TRUE(elsewhere);
  EXPECT_EQ(elsewhere->place.type, "m5.xlarge");
  EXPECT_EQ(cloud.calls().size(), 5U);
}

}  // namespace
}  // namespace lockstep::cloud
