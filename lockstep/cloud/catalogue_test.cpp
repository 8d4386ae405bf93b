#include "lockstep/cloud/catalogue.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/fake_provider.h"

namespace lockstep::cloud {
namespace {

std::vector<std::string> names(const std::vector<Offer>& offers) {
  std::vector<std::string> out;
  for (const Offer& one : offers) {
    out.push_back(one.type);
  }
  return out;
}

MachineWish wish(
    const std::string& cpus,
    const std::string& memory = "",
    const std::string& accelerators = "") {
  return *parse_wish(cpus, memory, accelerators);
}

constexpr const char* kSmall =
    "# a comment\n"
    "m5.large,2,8,-\n\n"
    "m5.xlarge,4,16,-\n"
    "c5.xlarge,4,8,-\n"
    "r5.xlarge,4,32,-\n"
    "g4dn.xlarge,4,16,T4:1\n"
    "g4dn.12xlarge,48,192,T4:4\n";

TEST(Catalogue, ShippedOneKnowsEveryTypeOfThePriceTable) {
  const auto known = names(Catalogue::shipped().types());
  const auto priced = PriceTable::shipped().types();
  EXPECT_EQ(
      std::set<std::string>(known.begin(), known.end()),
      std::set<std::string>(priced.begin(), priced.end()));
}

TEST(Catalogue, PlusMeansOrMore) {
  const Catalogue catalogue = *Catalogue::parse(kSmall, "t.csv");
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(*catalogue.matching(wish("2"))), Names{"m5.large"});
  EXPECT_EQ(
      names(*catalogue.matching(wish("4", "16"))),
      (Names{"m5.xlarge", "g4dn.xlarge"}));
  EXPECT_EQ(names(*catalogue.matching(wish("4", "17+"))), (Names{"r5.xlarge"}));
  EXPECT_EQ(
      names(*catalogue.matching(wish("", "", "t4"))), (Names{"g4dn.xlarge"}));
  EXPECT_EQ(
      names(*catalogue.matching(wish("", "", "T4:2+"))),
      (Names{"g4dn.12xlarge"}));
  EXPECT_EQ(catalogue.matching(MachineWish{})->size(), 6U);
}

TEST(Catalogue, NothingFitsNamesTheNearest) {
  const Catalogue catalogue = *Catalogue::parse(kSmall, "t.csv");
  const auto none = catalogue.matching(wish("4+", "64+", "T4:1+"));
  ASSERT_TRUE(none);  // the large one
  const auto error = catalogue.matching(wish("4", "64+", "T4:1")).error();
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_NE(
      error.message().find(
          "no known type has cpus 4, memory 64+, accelerators T4:1; the "
          "nearest: g4dn.xlarge (cpus 4, memory 16, T4:1)"),
      std::string::npos)
      << error.message();
  const auto unknown = catalogue.matching(wish("", "", "T5:1")).error();
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidInput);
  EXPECT_NE(unknown.message().find("'T4'"), std::string::npos)
      << unknown.message();
}

TEST(Catalogue, BadLinesAreNamed) {
  for (const char* line :
       {"m5.large,2,8",
        "m5.large,two,8,-",
        "m5.large,2,0,-",
        "m5.large,2,8,T4",
        "m5.large,2,8,T4:x",
        "m5.large,2,8,:1",
        ",2,8,-",
        "m5.large,2,8,-\nm5.large,2,8,-"}) {
    const auto read = Catalogue::parse(line, "t.csv");
    ASSERT_FALSE(read) << line;
    EXPECT_TRUE(read.error().message().starts_with("t.csv:"));
  }
}

TEST(MachineWish, BadTextNamesTheKeyAndWhatIsAccepted) {
  for (const char* text : {"four", "0", "-4", "4++", "+", "4.5", "99999999"}) {
    const auto cpus = parse_wish(text, "", "");
    ASSERT_FALSE(cpus) << text;
    EXPECT_NE(cpus.error().message().find("resources.cpus"), std::string::npos);
    EXPECT_NE(cpus.error().message().find("4 or 4+"), std::string::npos);
    EXPECT_FALSE(parse_wish("", text, ""));
    EXPECT_FALSE(parse_wish("", "", std::string("T4:") + text));
  }
  EXPECT_FALSE(parse_wish("", "", ":1"));
  EXPECT_EQ(
      wish("4+", "16", "T4").to_string(),
      "cpus 4+, memory 16, accelerators T4:1");
}

// Counts what it is asked, so that the short list stays short.
class FixedPrices : public PriceList {
 public:
  explicit FixedPrices(std::map<std::string, double> prices)
      : prices_(std::move(prices)) {}
  Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region) override {
    ++asked;
    const auto found = prices_.find(type);
    if (found == prices_.end()) {
      return std::vector<Price>();
    }
    Price price;
    price.type = type;
    price.region = region;
    price.hourly = Money::from_dollars(found->second);
    return std::vector{price};
  }
  int asked = 0;

 private:
  std::map<std::string, double> prices_;
};

TEST(ChooseCheapest, TodaysPriceDecides) {
  FakeProvider cloud(os::real_clock());
  const Catalogue catalogue = *Catalogue::parse(kSmall, "t.csv");
  // By the shipped prices c5.xlarge would be the cheapest.
  FixedPrices now({{"c5.xlarge", 3}, {"m5.xlarge", 1}, {"r5.xlarge", 2}});
  PriceBook book;
  book.add(now);
  const auto choose = [&] {
    return choose_cheapest(
        cloud, book, catalogue, wish("4", "8+"), Market::kOnDemand);
  };
  const auto chosen = choose();
  ASSERT_TRUE(chosen) << chosen.error().to_string();
  EXPECT_EQ(chosen->offer.type, "m5.xlarge");
  EXPECT_EQ(chosen->price.hourly.dollars(), 1.0);
  // A region without it has the next; a cloud that fails is an error.
  cloud.fail("offers", cloud_error(Failure::kBadRequest, "no m5 here"));
  EXPECT_EQ(choose()->offer.type, "r5.xlarge");
  cloud.fail("offers", cloud_error(Failure::kPermission, "not for you"));
  EXPECT_NE(
      choose().error().to_string().find("not for you"), std::string::npos);
}

TEST(ChooseCheapest, WithoutAnyPriceSaysSo) {
  FakeProvider cloud(os::real_clock());
  FixedPrices none({});
  PriceBook book;
  book.add(none);
  const auto chosen = choose_cheapest(
      cloud, book, Catalogue::shipped(), wish("2+"), Market::kOnDemand);
  ASSERT_FALSE(chosen);
  EXPECT_NE(
      chosen.error().message().find("types with cpus 2+"), std::string::npos)
      << chosen.error().message();
  EXPECT_LE(none.asked, 5);
}

}  // namespace
}  // namespace lockstep::cloud
