#include "lockstep/cloud/fallback.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/hosts/hosts.h"

namespace lockstep::cloud {
namespace {

// Own hosts, but launching says what the test wants, by type and zone.
class Scripted : public OwnHosts {
 public:
  Scripted() : OwnHosts({}) {}
  Result<std::vector<Instance>> launch(const LaunchOrder& order) override {
    orders.push_back(order);
    const auto found = refusals.find(order.type + "/" + order.zone);
    if (found != refusals.end()) {
      return cloud_error(found->second, "said " + order.type);
    }
    Instance one;
    one.id = "i-" + order.token;
    return std::vector<Instance>{one};
  }
  std::map<std::string, Failure> refusals;
  std::vector<LaunchOrder> orders;
};

LaunchPlace
place(const std::string& type, const std::string& zone, Market market = {}) {
  LaunchPlace one;
  one.type = type;
  one.zone = zone;
  one.market = market;
  return one;
}

LaunchOrder order() {
  LaunchOrder one;
  one.token = "run-1-node-0";
  one.bid = Money::from_dollars(0.1);
  one.image = "ami-1";
  return one;
}

TEST(Fallback, TakesTheFirstPlaceWithRoom) {
  Scripted cloud;
  cloud.refusals = {
      {"c5.xlarge/a", Failure::kCapacity}, {"c5.xlarge/b", Failure::kQuota}};
  std::vector<std::string> journal;
  const auto launched = launch_anywhere(
      cloud,
      order(),
      {place("c5.xlarge", "a", Market::kSpot),
       place("c5.xlarge", "b"),
       place("m5.xlarge", "a"),
       place("m5.xlarge", "b")},
      [&](const LaunchOrder& one) -> Result<void> {
        journal.push_back(one.token);
        return {};
      });
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->place.type, "m5.xlarge");
  EXPECT_EQ(launched->refused.size(), 2U);
  ASSERT_EQ(cloud.orders.size(), 3U);
  ASSERT_EQ(journal.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(journal[i], cloud.orders[i].token);
    EXPECT_EQ(cloud.orders[i].tags.at(std::string(kTokenTag)), "run-1-node-0");
  }
  EXPECT_NE(journal[0], journal[1]);
  EXPECT_TRUE(cloud.orders[0].bid);
  EXPECT_FALSE(cloud.orders[1].bid);  // a bid is for spot alone
}

TEST(Fallback, TokensOfOnePlaceAreTheSameAndShort) {
  LaunchOrder one = order();
  EXPECT_EQ(
      order_for(one, place("a", "b")).token,
      order_for(one, place("a", "b")).token);
  one.token = std::string(100, 'x') + "1";
  LaunchOrder other = order();
  other.token = std::string(100, 'x') + "2";
  const std::string token = order_for(one, place("a", "b")).token;
  EXPECT_LE(token.size(), 64U);
  EXPECT_NE(token, order_for(other, place("a", "b")).token);
}

TEST(Fallback, OtherFailuresEndTheWalk) {
  Scripted cloud;
  cloud.refusals = {{"c5.xlarge/a", Failure::kPermission}};
  const auto launched = launch_anywhere(
      cloud, order(), {place("c5.xlarge", "a"), place("m5.xlarge", "a")}, {});
  ASSERT_FALSE(launched);
  EXPECT_EQ(failure_of(launched.error()), Failure::kPermission);
  EXPECT_EQ(cloud.orders.size(), 1U);
}

TEST(Fallback, NamesEveryPlaceWhenAllAreShort) {
  Scripted cloud;
  cloud.refusals = {
      {"c5.xlarge/a", Failure::kCapacity}, {"m5.xlarge/", Failure::kQuota}};
  const auto launched = launch_anywhere(
      cloud, order(), {place("c5.xlarge", "a"), place("m5.xlarge", "")}, {});
  ASSERT_FALSE(launched);
  EXPECT_EQ(failure_of(launched.error()), Failure::kQuota);
  const std::string text = launched.error().to_string();
  EXPECT_NE(text.find("c5.xlarge in a: no capacity"), std::string::npos);
  EXPECT_NE(text.find("m5.xlarge: quota: said m5"), std::string::npos);
}

TEST(Fallback, AJournalThatFailsSendsNothing) {
  Scripted cloud;
  const auto launched = launch_anywhere(
      cloud,
      order(),
      {place("c5.xlarge", "a")},
      [](const LaunchOrder&) -> Result<void> {
        return Error(ErrorCode::kNoSpace, "disk full");
      });
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.error().code(), ErrorCode::kNoSpace);
  EXPECT_TRUE(cloud.orders.empty());
}

}  // namespace
}  // namespace lockstep::cloud
