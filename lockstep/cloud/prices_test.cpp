#include "lockstep/cloud/prices.h"

#include <gtest/gtest.h>

namespace lockstep::cloud {
namespace {

class Broken : public PriceList {
 public:
  Result<std::vector<Price>> prices(const std::string&, const std::string&)
      override {
    return Error(ErrorCode::kUnavailable, "nobody answers");
  }
};

UserPrices user(const std::map<std::string, std::string>& entries) {
  return *UserPrices::parse(entries, "config.yaml", 1.7e9);
}

TEST(PriceTable, ShippedOneIsWholeAndDated) {
  PriceTable table = PriceTable::shipped();
  EXPECT_GT(table.as_of(), 1.7e9);
  EXPECT_GE(table.types().size(), 40U);
  const auto price = table.prices("c5.xlarge", "us-west-2");
  ASSERT_TRUE(price);
  ASSERT_EQ(price->size(), 1U);
  EXPECT_EQ((*price)[0].hourly, Money::from_dollars(0.17));
  EXPECT_EQ((*price)[0].source, PriceSource::kTable);
  EXPECT_EQ((*price)[0].as_of, table.as_of());
  EXPECT_TRUE(table.prices("c5.xlarge", "mars-1")->empty());
}

TEST(PriceTable, BadLinesAreNamed) {
  const std::string date = "# as of 2026-01-02\n";
  for (const auto& [text, line] : std::map<std::string, std::string>{
           {date + "us-east-1,c5.large", "t.csv:2"},
           {date + "us-east-1,c5.large,free", "t.csv:2"},
           {date + "us-east-1,c5.large,-1", "t.csv:2"},
           {date + "r,t,1\n\nr,t,2", "t.csv:4"},
           {"# as of yesterday\n", "t.csv:1"},
           {"r,t,1\n", "t.csv:1"},
       }) {
    const auto table = PriceTable::parse(text, "t.csv");
    ASSERT_FALSE(table) << text;
    EXPECT_TRUE(table.error().message().starts_with(line))
        << table.error().message();
  }
}

TEST(UserPrices, TakeBothMarkets) {
  UserPrices prices = user(
      {{"c5.xlarge", "0.2"}, {"g5.xlarge.spot", "0.3"}, {"myhost", "1 USD"}});
  EXPECT_EQ(prices.prices("c5.xlarge", "x")->size(), 1U);
  const auto spot = *prices.prices("g5.xlarge", "x");
  ASSERT_EQ(spot.size(), 1U);
  EXPECT_EQ(spot[0].market, Market::kSpot);
  EXPECT_EQ(spot[0].as_of, 1.7e9);
  EXPECT_EQ(prices.prices("myhost", "")->front().hourly.dollars(), 1.0);
}

TEST(UserPrices, AMistypedMarketIsNamed) {
  const auto prices =
      UserPrices::parse({{"c5.xlarge.ondemand", "0.1"}}, "config.yaml", 1);
  ASSERT_FALSE(prices);
  EXPECT_EQ(
      prices.error().message(),
      "config.yaml: prices.c5.xlarge.ondemand: 'ondemand' is no market; "
      "accepted: on_demand, spot");
  EXPECT_TRUE(
      UserPrices::parse(
          {{"gpu1.lab.example", "0.1"}, {"u-6tb1.metal", "1"}},
          "config.yaml",
          1));
}

TEST(UserPrices, WhatIsNoPriceIsNamed) {
  const auto prices =
      UserPrices::parse({{"c5.xlarge", "cheap"}}, "config.yaml", 1);
  ASSERT_FALSE(prices);
  EXPECT_NE(
      prices.error().message().find("config.yaml: prices.c5.xlarge: 'cheap'"),
      std::string::npos);
  EXPECT_FALSE(
      UserPrices::parse(
          {{"c5.xlarge", "1"}, {"c5.xlarge.on_demand", "2"}}, "c", 1));
}

TEST(PriceBook, TheFirstThatKnowsAMarketWins) {
  UserPrices mine = user({{"c5.xlarge.spot", "0.05"}});
  PriceTable table = PriceTable::shipped();
  PriceBook book;
  book.add(mine);
  book.add(table);
  const auto prices = *book.prices("c5.xlarge", "us-east-1");
  ASSERT_EQ(prices.size(), 2U);
  EXPECT_EQ(prices[0].market, Market::kOnDemand);
  EXPECT_EQ(prices[0].source, PriceSource::kTable);
  EXPECT_EQ(prices[1].source, PriceSource::kUser);
  UserPrices over = user({{"c5.xlarge", "0.01"}});
  PriceBook second;
  second.add(over);
  second.add(table);
  EXPECT_EQ(
      second.price("c5.xlarge", "us-east-1", Market::kOnDemand)->source,
      PriceSource::kUser);
}

TEST(PriceBook, GoesOnWithoutAListThatFails) {
  Broken api;
  PriceTable table = PriceTable::shipped();
  PriceBook book;
  book.add(api);
  book.add(table);
  EXPECT_EQ(book.prices("c5.xlarge", "us-east-1")->size(), 1U);
  EXPECT_TRUE(book.prices("c5.large", "us-east-1"));
  ASSERT_EQ(book.problems().size(), 1U);  // each once
}

TEST(PriceBook, NobodyKnowsIt) {
  Broken api;
  PriceTable table = PriceTable::shipped();
  PriceBook book;
  book.add(api);
  book.add(table);
  const auto prices = book.prices("c5.xlrage", "us-east-1");
  ASSERT_FALSE(prices);
  EXPECT_EQ(prices.error().code(), ErrorCode::kNotFound);
  const std::string text = prices.error().to_string();
  EXPECT_NE(text.find("'c5.xlarge'"), std::string::npos) << text;
  EXPECT_NE(text.find("nobody answers"), std::string::npos) << text;
  EXPECT_FALSE(book.price("c5.xlarge", "us-east-1", Market::kSpot));
}

}  // namespace
}  // namespace lockstep::cloud
