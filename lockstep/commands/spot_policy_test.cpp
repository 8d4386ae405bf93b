#include "lockstep/commands/spot_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::commands {
namespace {

using cloud::Market;

fleet::Place place(const char* type, const char* zone, Market market) {
  fleet::Place made;
  made.where.type = type;
  made.where.zone = zone;
  made.where.market = market;
  return made;
}

std::vector<std::string> order_of(const fleet::Plan& plan) {
  std::vector<std::string> words;
  for (const fleet::Place& one : plan.groups[0].places) {
    words.push_back(
        one.where.type + "/" + one.where.zone +
        (one.where.market == Market::kSpot ? "" : "/paid"));
  }
  return words;
}

struct Bed {
  Bed(fleet::UseSpot use) {
    cluster.groups.resize(1);
    cluster.groups[0].use_spot = use;
    plan.groups.resize(1);
    plan.groups[0].places = {
        place("c5", "", Market::kSpot),
        place("c5", "a", Market::kSpot),
        place("c5", "b", Market::kSpot),
        place("m5", "a", Market::kSpot),
        place("c5", "", Market::kOnDemand)};
  }
  fleet::Cluster cluster;
  fleet::Plan plan;
};

TEST(SpotPolicyTest, AnotherZoneOrTypeComesFirst) {
  Bed bed(fleet::UseSpot::kAuto);
  prefer_elsewhere(bed.plan, bed.cluster, {"c5", "a"}, true);
  EXPECT_THAT(
      order_of(bed.plan),
      testing::ElementsAre("c5/b", "m5/a", "c5/", "c5/a", "c5//paid"));
}

TEST(SpotPolicyTest, OnDemandOnlyAfterTheWait) {
  Bed bed(fleet::UseSpot::kAuto);
  prefer_elsewhere(bed.plan, bed.cluster, {"c5", "a"}, false);
  EXPECT_THAT(
      order_of(bed.plan), testing::ElementsAre("c5/b", "m5/a", "c5/", "c5/a"));
}

TEST(SpotPolicyTest, WhereNothingIsSpotAllStays) {
  Bed bed(fleet::UseSpot::kNo);
  prefer_elsewhere(bed.plan, bed.cluster, {"c5", "a"}, false);
  EXPECT_EQ(order_of(bed.plan).size(), 5u);
  EXPECT_EQ(order_of(bed.plan).front(), "c5/");
}

}  // namespace
}  // namespace lockstep::commands
