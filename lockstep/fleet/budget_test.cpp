#include "lockstep/fleet/budget.h"

#include <gtest/gtest.h>

namespace lockstep::fleet {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

Money usd(double dollars) {
  return Money::from_dollars(dollars);
}

TEST(Budget, SecondsAreBilledFromOneMinuteOn) {
  EXPECT_EQ(billed(usd(3.6), seconds(1)), usd(0.06));
  EXPECT_EQ(billed(usd(3.6), seconds(90)), usd(0.09));
  EXPECT_EQ(billed(usd(3.6), hours(2)), usd(7.2));
}

TEST(Budget, DisksAndTrafficCount) {
  // 730 hours of 100 GiB are a month.
  EXPECT_NEAR(
      (disk_hourly(Bytes{uint64_t{100} << 30}) * 730).dollars(), 10, 1e-4);
  // A part of a GiB is billed as one.
  EXPECT_EQ(disk_hourly(Bytes{1}), disk_hourly(Bytes{1 << 30}));
  EXPECT_NEAR(traffic_cost(Bytes{2'000'000'000}).dollars(), 0.18, 1e-9);
}

TEST(Budget, LivesAddUp) {
  const std::vector<Life> lives = {
      {usd(1), 1000, 0},      // lives: 1 h
      {usd(2), 1000, 2800},   // half an hour
      {usd(60), 4590, 4600},  // ten seconds: a minute
  };
  EXPECT_EQ(cost_so_far(lives, 4600), usd(1) + usd(1) + usd(1));
  // A clock that went back costs no less than the least.
  EXPECT_EQ(cost_so_far({{usd(60), 5000, 0}}, 4600), usd(1));
}

TEST(Budget, TheWordToStopComesBeforeTheCap) {
  const Budget budget({
      .cap = usd(10),
      .max_duration = {},
      .stopping = minutes(6),
      .stored = Bytes{10'000'000'000},
  });
  // 10 - 0.9 of traffic - 0.2 of stopping at 2 an hour.
  EXPECT_EQ(budget.reserve(usd(2)), usd(1.1));
  EXPECT_NEAR(
      to_seconds(*budget.time_left(Money(), usd(2), {})), 8.9 / 2 * 3600, 1);
  EXPECT_NEAR(
      to_seconds(*budget.time_left(usd(8), usd(2), {})), 0.9 / 2 * 3600, 1);
  EXPECT_EQ(*budget.time_left(usd(8.9), usd(2), {}), Duration(0));
  EXPECT_EQ(*budget.time_left(usd(50), usd(2), {}), Duration(0));
  // Never past the cap: what is left costs no more than what is free.
  for (const double spent : {0.0, 3.3, 7.77}) {
    const auto left = *budget.time_left(usd(spent), usd(2), {});
    EXPECT_LE(
        usd(spent) + usd(2) * (to_seconds(left) / 3600) +
            budget.reserve(usd(2)),
        usd(10.000001));
  }
}

TEST(Budget, TheShorterOfMoneyAndTimeCounts) {
  const Budget budget({
      .cap = usd(100),
      .max_duration = hours(1),
      .stopping = minutes(2),
      .stored = {},
  });
  EXPECT_EQ(*budget.time_left(Money(), usd(1), minutes(10)), minutes(48));
  EXPECT_EQ(*budget.time_left(Money(), usd(1), hours(3)), Duration(0));
  EXPECT_EQ(*budget.longest_life(usd(1)), hours(1));
  EXPECT_NEAR(to_seconds(*budget.longest_life(usd(200))), 1800, 1);
  EXPECT_FALSE(Budget({}).longest_life(usd(1)));
  EXPECT_FALSE(Budget({}).time_left(usd(1), usd(1), hours(9)));
}

TEST(Budget, TooLittleIsTold) {
  const auto words = [](BudgetOptions options, Money hourly) {
    const auto checked = Budget(options).check(hourly, 2);
    return checked ? "" : checked.error().to_string();
  };
  EXPECT_NE(
      words({.cap = usd(0.01)}, usd(6)).find("below the cost of one minute"),
      std::string::npos);
  EXPECT_NE(
      words({.cap = usd(0.15)}, usd(6)).find("stopping"), std::string::npos);
  EXPECT_NE(
      words({.max_duration = minutes(1)}, usd(6)).find("max_duration"),
      std::string::npos);
  EXPECT_NE(
      words({.max_duration = seconds(59), .stopping = {}}, usd(6))
          .find("below one minute"),
      std::string::npos);
  EXPECT_EQ(words({.max_duration = minutes(1), .stopping = {}}, usd(6)), "");
  EXPECT_EQ(words({.cap = usd(1)}, usd(6)), "");
}

}  // namespace
}  // namespace lockstep::fleet
