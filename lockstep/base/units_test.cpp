#include "lockstep/base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Duration, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_duration("90s").value(), seconds(90));
  EXPECT_EQ(parse_duration("1h30m").value(), seconds(5400));
  EXPECT_EQ(parse_duration("1.5h").value(), seconds(5400));
  EXPECT_EQ(parse_duration("250ms").value(), milliseconds(250));
  EXPECT_EQ(parse_duration(" 2 d ").value(), seconds(172800));
  EXPECT_EQ(parse_duration("7").value(), seconds(7));
}

TEST(Duration, RefusesTheRest) {
  for (const char* text :
       {"",
        "abc",
        "5x",
        "-3s",
        "1h5",
        "1..2s",
        "1e99s",
        "99999999999999d",
        "."}) {
    auto parsed = parse_duration(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(parsed.error().message().find("1h30m"), std::string::npos);
  }
}

TEST(Duration, Prints) {
  EXPECT_EQ(format_duration(seconds(5400)), "1h 30m");
  EXPECT_EQ(format_duration(seconds(125)), "2m 05s");
  EXPECT_EQ(format_duration(milliseconds(12300)), "12.3 s");
  EXPECT_EQ(format_duration(milliseconds(250)), "250 ms");
}

TEST(Money, SumsThatAreTooLargeStayLarge) {
  const Money most = Money::from_dollars(9e9);
  EXPECT_GT(most + most, most);
  EXPECT_GT(Money() - (Money() - most - most), most);
  EXPECT_LT(Money() - most - most, Money());
}

TEST(Money, ParsesPrintsAndAddsExactly) {
  EXPECT_EQ(parse_money("20 USD").value(), Money::from_dollars(20));
  EXPECT_EQ(parse_money("$0.5").value(), Money::from_dollars(.5));
  EXPECT_FALSE(parse_money("20 EUR"));
  EXPECT_FALSE(parse_money("-1"));
  Money sum;
  for (int i = 0; i < 1000; ++i) {
    sum = sum + parse_money("0.001").value();
  }
  EXPECT_EQ(sum, Money::from_dollars(1));
  EXPECT_EQ(format_money(Money::from_dollars(12.345)), "$12.35");
  EXPECT_EQ(format_money(Money::from_dollars(.0042)), "$0.004200");
}

TEST(Bytes, ParsesAndPrints) {
  EXPECT_EQ(parse_bytes("64KiB").value().count, 65536u);
  EXPECT_EQ(parse_bytes("1.5 GB").value().count, 1500000000u);
  EXPECT_EQ(parse_bytes("16").value().count, 16u);
  EXPECT_FALSE(parse_bytes("16 furlongs"));
  EXPECT_EQ(format_bytes({1610612736}), "1.5 GiB");
}

// Found by the fuzzer: over 2^63 the rounding overflowed, and what was printed
// in PiB could not be read.
TEST(Bytes, HugeOnesAreRefusedOrReadBack) {
  EXPECT_FALSE(parse_bytes("9223372655354775808"));
  EXPECT_FALSE(parse_bytes("1e30"));
  EXPECT_EQ(parse_bytes("1024 PiB").value().count, uint64_t{1} << 60);
  EXPECT_EQ(
      parse_bytes(format_bytes({uint64_t{1} << 60})).value().count,
      uint64_t{1} << 60);
}

TEST(Units, WhatIsNoNumberOrTooLargeIsPrinted) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(format_duration(from_seconds(kNan)), "0 us");
  EXPECT_EQ(format_duration(from_seconds(1e300)), "over 290 years");
  EXPECT_EQ(format_duration(from_seconds(-1e300)), "-over 290 years");
  EXPECT_EQ(format_duration(Duration::min()), "-over 290 years");
  EXPECT_EQ(format_money(Money::from_dollars(kNan)), "$0.00");
  EXPECT_EQ(format_money(Money::from_dollars(1e300)), "$9200000000.00");
  EXPECT_EQ(
      format_money(Money::from_nanos(std::numeric_limits<int64_t>::min())),
      "-$9200000000.00");
}

}  // namespace
}  // namespace lockstep
