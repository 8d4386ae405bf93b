#include "lockstep/fleet/plan.h"

#include <gtest/gtest.h>

#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/fake_nodes_test.h"

namespace lockstep::fleet {
namespace {

Result<Plan> plan(World& world, const Cluster& cluster) {
  return make_plan(world.cloud, world.book, cluster);
}

TEST(Plan, PlacesGoFromTheFirstChoiceToTheLast) {
  World world;
  Cluster cluster = small_cluster(2);
  cluster.groups[0].use_spot = UseSpot::kAuto;
  cluster.groups[0].fallback = {"m5.xlarge"};
  cluster.zones = {"nowhere-1b", "nowhere-1a"};
  const auto made = plan(world, cluster);
  ASSERT_TRUE(made) << made.error().to_string();
  std::string order;
  for (const Place& place : made->groups[0].places) {
    order += place.where.type.substr(0, 2) + place.where.zone.substr(9) +
             (place.where.market == cloud::Market::kSpot ? "s " : "d ");
  }
  EXPECT_EQ(order, "c5bs c5as m5bs m5as c5bd c5ad m5bd m5ad ");
  EXPECT_NEAR(made->hourly.dollars(), 0.5, 0.01);
  // Spot may rise to the price on demand.
  EXPECT_NEAR(made->hourly_most.dollars(), 2, 0.01);
  cluster.groups[0].bid = Money::from_dollars(0.3);
  cluster.groups[0].use_spot = UseSpot::kYes;
  EXPECT_NEAR(plan(world, cluster)->hourly_most.dollars(), 0.6, 0.01);
  EXPECT_TRUE(plan(world, cluster)->notes.empty());
  cluster.groups[0].bid = Money::from_dollars(0.2);
  const auto low = plan(world, cluster);
  ASSERT_EQ(low->notes.size(), 1U);
  EXPECT_NE(low->notes[0].find("below its spot price"), std::string::npos);
}

TEST(Plan, ComesBackAsItWas) {
  World world;
  Cluster cluster = small_cluster(2);
  cluster.groups[0].use_spot = UseSpot::kAuto;
  cluster.groups[0].fallback = {"m5.xlarge"};
  cluster.budget = Money::from_dollars(5);
  const auto made = plan(world, cluster);
  ASSERT_TRUE(made) << made.error().to_string();
  const auto read = plan_from_json(to_json(*made));
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(to_json(*read), to_json(*made));
  ASSERT_EQ(read->groups[0].places.size(), made->groups[0].places.size());
  const Place& last = read->groups[0].places.back();
  EXPECT_EQ(last.where.market, cloud::Market::kOnDemand);
  EXPECT_EQ(last.where.image, made->groups[0].places.back().where.image);
  EXPECT_EQ(last.hourly, made->groups[0].places.back().hourly);
  EXPECT_EQ(read->longest_life, made->longest_life);
  EXPECT_TRUE(read->longest_life);
  auto broken = to_json(*made);
  broken["groups"][0]["places"][0]["disk"] = "large";
  EXPECT_EQ(plan_from_json(broken).error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(plan_from_json(nlohmann::json::array()));
}

TEST(Plan, WithoutZonesTheCloudChoosesFirst) {
  World world;
  const auto made = plan(world, small_cluster(1));
  ASSERT_EQ(made->groups[0].places.size(), 3U);
  EXPECT_EQ(made->groups[0].places[0].where.zone, "");
  Cluster cluster = small_cluster(1);
  cluster.subnets = {"s-1", "s-2"};
  const auto subnets = plan(world, cluster);
  ASSERT_EQ(subnets->groups[0].places.size(), 2U);
  EXPECT_EQ(subnets->groups[0].places[1].where.subnet, "s-2");
  cluster.subnets.clear();
  cluster.zones = {"mars-1a"};
  const auto none = plan(world, cluster);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().to_string().find("nowhere-1a"), std::string::npos);
}

TEST(Plan, UnknownPricesAndSmallBudgetsAreRefused) {
  World world;
  Cluster cluster = small_cluster(2);
  cluster.groups[0].type = "unknown.type";
  const auto free = plan(world, cluster);
  ASSERT_TRUE(free);
  EXPECT_FALSE(free->price_known);
  cluster.budget = Money::from_dollars(5);
  const auto refused = plan(world, cluster);
  ASSERT_FALSE(refused);
  EXPECT_NE(
      refused.error().to_string().find("price of unknown.type"),
      std::string::npos);
  cluster.price_may_be_unknown = true;
  EXPECT_TRUE(plan(world, cluster));
  cluster.groups[0].type = "c5.xlarge";
  cluster.budget = Money::from_dollars(0.01);
  const auto little = plan(world, cluster);
  ASSERT_FALSE(little);
  EXPECT_NE(
      little.error().to_string().find("below the cost of one minute"),
      std::string::npos);
  cluster.budget = Money::from_dollars(4);
  EXPECT_NEAR(to_seconds(*plan(world, cluster)->longest_life), 7200, 60);
}

TEST(Plan, AQuotaThatIsTooSmallIsToldBeforeAnythingIsMade) {
  World world;
  world.cloud.set_capacity("c5.xlarge", 1);
  const auto refused = plan(world, small_cluster(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(cloud::failure_of(refused.error()), cloud::Failure::kQuota);
  EXPECT_EQ(world.num_things(), 0U);
  // A quota that cannot be asked is a note.
  World other;
  other.cloud.fail(
      "quota",
      cloud::cloud_error(cloud::Failure::kPermission, "GetServiceQuota"));
  const auto made = plan(other, small_cluster(2));
  ASSERT_TRUE(made);
  ASSERT_EQ(made->notes.size(), 1U);
  EXPECT_NE(made->notes[0].find("GetServiceQuota"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::fleet
