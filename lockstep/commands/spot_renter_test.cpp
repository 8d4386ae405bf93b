#include "lockstep/commands/spot_renter.h"

#include <gtest/gtest.h>

#include "lockstep/fleet/fake_nodes_test.h"

namespace lockstep::commands {
namespace {

using std::chrono::seconds;

fleet::Cluster spot_cluster() {
  fleet::Cluster cluster = fleet::small_cluster(2);
  cluster.groups[0].use_spot = fleet::UseSpot::kYes;
  cluster.head_on_demand = true;
  return cluster;
}

// Whoever rents: the client or the head, each with a journal of its own.
struct Side {
  Side(fleet::World& world, const std::string& name) {
    fleet::JournalOptions where;
    where.folder = world.folder / name;
    where.clock = &world.clock;
    journal = fleet::Journal::open(where).value();
    fleet::FleetOptions options = world.options(*journal);
    options.shares_name = true;  // as client and head of one run
    machines = std::make_unique<fleet::Fleet>(std::move(options));
    const fleet::Cluster cluster = spot_cluster();
    renter = std::make_unique<SpotRenter>(SpotRenterOptions{
        cluster,
        fleet::make_plan(world.cloud, world.book, cluster).value(),
        &world.cloud,
        machines.get(),
        world.clock.unix_seconds()});
  }
  std::unique_ptr<fleet::Journal> journal;
  std::unique_ptr<fleet::Fleet> machines;
  std::unique_ptr<SpotRenter> renter;
};

class Renter : public ::testing::Test {
 protected:
  Renter() : client_(world_, "client") {
    nodes_ =
        world_.up(spot_cluster()).value();  // of a journal that is nobody's
    world_.clock.advance(seconds(60));
  }
  std::string id_of(const std::string& node) {
    const auto nodes = client_.machines->nodes().value();
    for (const auto& one : nodes) {
      if (one.name == node) {
        return one.instance.id;
      }
    }
    return "";
  }

  fleet::World world_;
  Side client_;
  std::vector<fleet::Node> nodes_;
};

TEST_F(Renter, OneThatLeavesIsEndedAndOneThatIsLostMayComeBack) {
  const std::string old = id_of("blue-1");
  const double now = world_.clock.unix_seconds();
  EXPECT_FALSE(client_.renter->rent("blue-1", {false, now}).value());
  EXPECT_EQ(id_of("blue-1"), old);
  const auto rented = client_.renter->rent("blue-1", {true, now});
  ASSERT_TRUE(rented) << rented.error().to_string();
  EXPECT_TRUE(*rented);
  EXPECT_NE(id_of("blue-1"), old);
  EXPECT_EQ(world_.cloud.num_live(), 2U);
  EXPECT_EQ(world_.cloud.num_launched(), 3U);
  EXPECT_FALSE(client_.renter->has_ended("blue-1"));
  EXPECT_TRUE(client_.renter->has_ended("blue-7"));
}

// The client launched another one and died before it joined: the head takes
// that one up.
TEST_F(Renter, WhatTheOtherSideLaunchedIsNotDoubled) {
  for (const bool is_leaving : {true, false}) {
    const double since = world_.clock.unix_seconds();
    if (!is_leaving) {
      ASSERT_TRUE(world_.cloud.terminate({id_of("blue-1")}));
    }
    world_.clock.advance(seconds(5));
    ASSERT_TRUE(client_.renter->rent("blue-1", {is_leaving, since}).value());
    const std::string made = id_of("blue-1");
    const size_t launched = world_.cloud.num_launched();
    world_.clock.advance(seconds(30));
    Side head(world_, is_leaving ? "head" : "later");
    const auto taken = head.renter->rent("blue-1", {is_leaving, since});
    ASSERT_TRUE(taken) << taken.error().to_string();
    EXPECT_TRUE(*taken);
    EXPECT_EQ(id_of("blue-1"), made);
    EXPECT_EQ(world_.cloud.num_launched(), launched);
    EXPECT_EQ(world_.cloud.num_live(), 2U);
    world_.clock.advance(seconds(30));
  }
}

TEST_F(Renter, WithoutRoomNothingIsLeftBehind) {
  world_.cloud.set_capacity("c5.xlarge", 1);
  const auto rented =
      client_.renter->rent("blue-1", {true, world_.clock.unix_seconds()});
  ASSERT_FALSE(rented);
  EXPECT_EQ(world_.cloud.num_live(), 1U);
}

}  // namespace
}  // namespace lockstep::commands
