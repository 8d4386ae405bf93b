#include "lockstep/fleet/audit.h"

#include <gtest/gtest.h>

#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/fake_nodes_test.h"

namespace lockstep::fleet {
namespace {

using cloud::ResourceKind;

std::string told(World& world, std::set<std::string> abandoned = {}) {
  std::string text;
  const auto audited = judge(
      *all_of_ours(world.cloud),
      {world.clock.unix_seconds(), std::move(abandoned)});
  for (const Audited& one : audited) {
    if (one.owner != Ownership::kOver) {
      text += std::string(to_string(one.resource.kind)) + ": " +
              std::string(to_string(one.owner)) + "\n";
    }
  }
  return text;
}

// Dies when the machine is launched and nobody saw its timer.
void die_half_way(World& world) {
  (void)world
      .up(small_cluster(1),
          [](int number, JournalOptions::Moment) -> Result<void> {
            if (number == 7) {
              return Error(ErrorCode::kAborted, "killed");
            }
            return {};
          })
      .has_value();
  ASSERT_EQ(world.cloud.num_live(), 1U);
}

TEST(Audit, AClusterThatIsUpIsOwned) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(1)));
  // Long after the claim its timer still owns it, and it its cluster.
  world.clock.advance(std::chrono::hours(5));
  EXPECT_EQ(
      told(world),
      "instance: its lease\nvolume: its cluster\nkey pair: its cluster\n"
      "security group: its cluster\n");
  const auto audited =
      judge(*all_of_ours(world.cloud), {world.clock.unix_seconds(), {}});
  EXPECT_TRUE(end_unowned(world.cloud, audited, world.clock).ended.empty());
  EXPECT_EQ(world.cloud.num_live(), 1U);
}

TEST(Audit, WhatWasLeftHalfWayIsClaimedAndThenNobodys) {
  World world;
  die_half_way(world);
  EXPECT_NE(told(world).find("instance: its maker"), std::string::npos);
  EXPECT_EQ(told(world).find("nobody"), std::string::npos);
  // This machine knows that the command has died.
  EXPECT_EQ(told(world, {"blue"}).find("its"), std::string::npos);
  // Others know it when the claim is over.
  world.clock.advance(std::chrono::hours(1));
  EXPECT_EQ(told(world).find("its"), std::string::npos);
  auto audited =
      judge(*all_of_ours(world.cloud), {world.clock.unix_seconds(), {}});
  // The group is held for a while.
  world.cloud.fail(
      "remove",
      cloud::cloud_error(cloud::Failure::kTransient, "DependencyViolation"),
      2);
  const Ended ended = end_unowned(world.cloud, audited, world.clock);
  EXPECT_EQ(ended.ended.size(), 4U);
  EXPECT_TRUE(ended.failed.empty());
  EXPECT_EQ(world.num_things(), 0U);
}

TEST(Audit, OneThatCannotBeEndedDoesNotKeepTheOthers) {
  World world;
  die_half_way(world);
  world.clock.advance(std::chrono::hours(1));
  const auto audited =
      judge(*all_of_ours(world.cloud), {world.clock.unix_seconds(), {}});
  world.cloud.fail(
      "terminate", cloud::cloud_error(cloud::Failure::kPermission, "no"));
  const Ended ended = end_unowned(world.cloud, audited, world.clock);
  ASSERT_EQ(ended.failed.size(), 1U);
  EXPECT_NE(ended.failed[0].to_string().find("i-1"), std::string::npos);
  EXPECT_EQ(ended.ended.size(), 3U);
}

}  // namespace
}  // namespace lockstep::fleet
