#include "lockstep/cloud/hosts/hosts.h"

#include <gtest/gtest.h>

#include "lockstep/cloud/failure.h"

namespace lockstep::cloud {
namespace {

OwnHost host(const std::string& name, const std::string& type = "own") {
  OwnHost one;
  one.name = name;
  one.type = type;
  return one;
}

LaunchOrder order(const std::string& token, int count) {
  LaunchOrder one;
  one.token = token;
  one.type = "own";
  one.count = count;
  one.tags = {{std::string(kClusterTag), "c"}};
  return one;
}

TEST(OwnHosts, AreTakenGivenBackAndTakenAgain) {
  OwnHosts hosts({host("a"), host("b"), host("g", "gpu")});
  EXPECT_FALSE(hosts.is_rented());
  const auto two = hosts.launch(order("t1", 2));
  ASSERT_TRUE(two);
  EXPECT_EQ((*two)[0].private_address, "a");
  EXPECT_EQ((*two)[1].private_address, "b");
  EXPECT_EQ(hosts.instances({})->size(), 2U);
  const auto more = hosts.launch(order("t2", 1));
  ASSERT_FALSE(more);
  EXPECT_EQ(failure_of(more.error()), Failure::kCapacity);
  EXPECT_NE(more.error().message().find("0 are free"), std::string::npos);
  ASSERT_TRUE(hosts.terminate({"a", "never-there"}));
  EXPECT_EQ((*hosts.launch(order("t2", 1)))[0].id, "a");
}

TEST(OwnHosts, OneTokenTakesOnce) {
  OwnHosts hosts({host("a"), host("b")});
  ASSERT_TRUE(hosts.launch(order("t", 1)));
  const auto again = hosts.launch(order("t", 1));
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)[0].id, "a");
  Offer own;
  own.type = "own";
  EXPECT_EQ(hosts.quota(own, Market::kOnDemand)->left(), 1);
}

TEST(OwnHosts, AreFoundByTagAndId) {
  OwnHosts hosts({host("a"), host("b")});
  ASSERT_TRUE(hosts.launch(order("t", 2)));
  ASSERT_TRUE(hosts.set_tags({"b"}, {{"x", "1"}}));
  EXPECT_EQ(hosts.instances({.tags = {{"x", ""}}, .ids = {}})->size(), 1U);
  EXPECT_EQ(hosts.instances({.tags = {{"x", "2"}}, .ids = {}})->size(), 0U);
  EXPECT_EQ(hosts.instances({.tags = {}, .ids = {"a"}})->size(), 1U);
  EXPECT_EQ(hosts.resources(ResourceKind::kInstance, {})->size(), 2U);
  EXPECT_EQ(hosts.resources(ResourceKind::kVolume, {})->size(), 0U);
}

TEST(OwnHosts, RefuseWhatTheyCannotBe) {
  OwnHosts hosts({host("a")});
  LaunchOrder spot = order("t", 1);
  spot.market = Market::kSpot;
  EXPECT_EQ(failure_of(hosts.launch(spot).error()), Failure::kBadRequest);
  LaunchOrder image = order("t", 1);
  image.image = "ami-1";
  EXPECT_EQ(failure_of(hosts.launch(image).error()), Failure::kBadRequest);
  const auto offers = hosts.offers({"ownn"});
  ASSERT_FALSE(offers);
  EXPECT_NE(offers.error().message().find("'own'"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::cloud
