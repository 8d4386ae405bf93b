#include "lockstep/cloud/ec2/pricing.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/cloud/ec2/fake_cloud_test.h"
#include "lockstep/cloud/failure.h"

namespace lockstep::cloud::ec2 {
namespace {

using Said = std::pair<int, std::string>;
using nlohmann::json;

std::string product(const std::string& dollars, const std::string& unit) {
  return json({{"product", {{"attributes", {{"instanceType", "c5.xlarge"}}}}},
               {"terms",
                {{"OnDemand",
                  {{"A.B",
                    {{"priceDimensions",
                      {{"A.B.C",
                        {{"unit", unit},
                         {"pricePerUnit", {{"USD", dollars}}}}}}}}}}}}}})
      .dump();
}

std::string spot_item(
    const std::string& zone,
    const std::string& price,
    const std::string& time) {
  return "<item><instanceType>c5.xlarge</instanceType><spotPrice>" + price +
         "</spotPrice><timestamp>" + time + "</timestamp><availabilityZone>" +
         zone + "</availabilityZone></item>";
}

TEST(Pricing, ProductsAreRead) {
  EXPECT_EQ(
      **read_product(product("0.1700000000", "Hrs")),
      Money::from_dollars(0.17));
  EXPECT_FALSE(read_product(product("0.17", "Quantity"))->has_value());
  EXPECT_FALSE(read_product(product("0.0000000000", "Hrs"))->has_value());
  EXPECT_FALSE(read_product("{}")->has_value());
  EXPECT_FALSE(read_product(R"({"terms": {"OnDemand": []}})")->has_value());
  EXPECT_FALSE(read_product("not json"));
  EXPECT_FALSE(read_product(product("cheap", "Hrs")));
}

TEST(Pricing, BothMarketsTheNewestOfEachZone) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "AWSPriceListService.GetProducts") {
      EXPECT_NE(call.host.find("api.pricing.us-east-1"), std::string::npos);
      EXPECT_NE(call.body.find("us-west-2"), std::string::npos);
      return {200, json({{"PriceList", {product("0.17", "Hrs")}}}).dump()};
    }
    return {
        200,
        "<r><spotPriceHistorySet>" +
            spot_item("us-west-2a", "0.090000", "2026-11-15T08:00:00.000Z") +
            spot_item("us-west-2a", "0.080000", "2026-11-15T07:00:00.000Z") +
            spot_item("us-west-2b", "0.060000", "2026-11-15T06:00:00.000Z") +
            "</spotPriceHistorySet></r>"};
  });
  ApiPrices api(*cloud.client, cloud.clock);
  const auto prices = api.prices("c5.xlarge", "us-west-2");
  ASSERT_TRUE(prices) << prices.error().to_string();
  ASSERT_EQ(prices->size(), 3U);
  EXPECT_EQ((*prices)[0].hourly, Money::from_dollars(0.17));
  EXPECT_EQ((*prices)[0].as_of, cloud.clock.unix_seconds());
  EXPECT_EQ((*prices)[1].zone, "us-west-2b");
  EXPECT_EQ((*prices)[2].hourly, Money::from_dollars(0.09));
  PriceBook book;
  book.add(api);
  EXPECT_EQ(
      book.price("c5.xlarge", "us-west-2", Market::kSpot)->zone, "us-west-2a");
  EXPECT_EQ(
      book.price("c5.xlarge", "us-west-2", Market::kSpot, "us-west-2b")->zone,
      "us-west-2b");
}

TEST(Pricing, OneServiceThatRefusesDoesNotHideTheOther) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "AWSPriceListService.GetProducts") {
      return {
          400,
          R"({"__type":"AccessDeniedException","Message":"not allowed to"})"};
    }
    return {
        200,
        "<r><spotPriceHistorySet>" +
            spot_item("us-west-2a", "0.09", "2026-11-15T08:00:00Z") +
            "</spotPriceHistorySet></r>"};
  });
  ApiPrices api(*cloud.client, cloud.clock);
  const auto prices = api.prices("c5.xlarge", "us-west-2");
  ASSERT_TRUE(prices);
  EXPECT_EQ(prices->size(), 1U);
  ASSERT_EQ(api.problems().size(), 1U);
  EXPECT_EQ(failure_of(api.problems()[0]), Failure::kPermission);
  EXPECT_NE(
      api.problems()[0].to_string().find("pricing:GetProducts"),
      std::string::npos)
      << api.problems()[0].to_string();
  ASSERT_TRUE(api.prices("c5.large", "us-west-2"));
  EXPECT_EQ(cloud.count("AWSPriceListService.GetProducts"), 1U);
  EXPECT_EQ(cloud.count("DescribeSpotPriceHistory"), 2U);
}

TEST(Pricing, AnUnknownTypeHasNoPrice) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    return call.action == "AWSPriceListService.GetProducts"
               ? Said{200, R"({"PriceList":[]})"}
               : refused(400, "InvalidParameterValue", "Invalid instance type");
  });
  ApiPrices api(*cloud.client, cloud.clock);
  const auto prices = api.prices("c5.xlrage", "us-west-2");
  ASSERT_TRUE(prices);
  EXPECT_TRUE(prices->empty());
}

}  // namespace
}  // namespace lockstep::cloud::ec2
