#include "lockstep/economics/race.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::economics {
namespace {

// `count` iterations of `seconds`, all alike.
Racer racer(double seconds, int count, double dollars_per_hour) {
  const std::vector<double> values(static_cast<size_t>(count), seconds);
  return {
      .dollars_per_hour = dollars_per_hour,
      .iteration = estimate(std::span<const double>(values)),
      .reached = static_cast<double>(count),
      .dollars = seconds * count * dollars_per_hour / 3600};
}

TEST(Race, WithoutAnyIterationAllGoOn) {
  const std::vector<Racer> racers = {
      {.dollars_per_hour = 1}, {.dollars_per_hour = 2}};
  for (const Ruling& ruling : judge(racers)) {
    EXPECT_EQ(ruling.standing, Standing::kRacing);
    EXPECT_EQ(ruling.target, 2);
  }
  EXPECT_FALSE(cheapest(racers));
  EXPECT_FALSE(fastest(racers));
}

TEST(Race, AnObviousLoserIsStoppedEarlyWithAReason) {
  const std::vector<Racer> racers = {racer(0.1, 5, 1), racer(10, 2, 1)};
  const auto rulings = judge(racers);
  EXPECT_EQ(rulings[1].standing, Standing::kLost);
  EXPECT_NE(rulings[1].reason.find("100.00 times"), std::string::npos)
      << rulings[1].reason;
}

TEST(Race, TheFastestGoesOnAlsoWhenItIsDear) {
  // Twice as fast, nine times the cost: it cannot be the cheapest.
  std::vector<Racer> racers = {
      racer(1, 10, 1), racer(1.05, 10, 1), racer(0.5, 10, 18)};
  racers[2].dollars = 0;
  RaceOptions options;
  options.cap_share = 1;
  EXPECT_EQ(judge(racers, options)[2].standing, Standing::kEnough);
  options.time_width = 0;
  EXPECT_EQ(judge(racers, options)[2].standing, Standing::kLost);
}

TEST(Race, CloseRivalsAreMeasuredToTheLastStage) {
  std::vector<Racer> racers = {racer(1, 10, 1), racer(1.02, 10, 1)};
  auto rulings = judge(racers);
  EXPECT_EQ(rulings[0].standing, Standing::kRacing);
  EXPECT_EQ(rulings[0].target, 32);
  EXPECT_EQ(rulings[1].standing, Standing::kRacing);
  racers = {racer(1, 64, 1), racer(1.02, 64, 1)};
  rulings = judge(racers);
  EXPECT_EQ(rulings[0].standing, Standing::kEnough);
  EXPECT_EQ(rulings[1].standing, Standing::kEnough);
  EXPECT_LT(cheaper_by(racers[0], racers[1]), 1);
}

TEST(Race, WhoStandsAloneIsMeasuredNoMoreThanAsked) {
  std::vector<Racer> racers = {racer(1, 5, 1), racer(50, 5, 1)};
  racers[1].standing = Standing::kLost;
  EXPECT_EQ(judge(racers)[0].standing, Standing::kEnough);
  RaceOptions options;
  options.at_least = 10;
  EXPECT_EQ(judge(racers, options)[0].standing, Standing::kRacing);
}

TEST(Race, TheCapInDollarsIsNeverPassed) {
  std::vector<Racer> racers = {racer(1, 10, 3600), racer(1.01, 10, 3600)};
  RaceOptions options;
  options.cap_dollars = 25;  // 20 are spent, the next stage is 22 more
  for (const Ruling& ruling : judge(racers, options)) {
    EXPECT_EQ(ruling.standing, Standing::kCapped);
    EXPECT_NE(ruling.reason.find("25"), std::string::npos);
  }
  options.cap_dollars = 45;  // one of the two fits
  const auto rulings = judge(racers, options);
  EXPECT_EQ(rulings[0].standing, Standing::kRacing);
  EXPECT_EQ(rulings[1].standing, Standing::kCapped);
}

TEST(Race, WhoShowsNoIterationIsStoppedOnceItCannotWin) {
  std::vector<Racer> racers = {racer(0.1, 20, 1), {.dollars_per_hour = 1}};
  racers[1].pending = 0.2;
  EXPECT_EQ(judge(racers)[1].standing, Standing::kRacing);
  racers[1].pending = 5;
  const Ruling ruling = judge(racers)[1];
  EXPECT_EQ(ruling.standing, Standing::kLost);
  EXPECT_NE(ruling.reason.find("no iteration in 5 s"), std::string::npos)
      << ruling.reason;
}

TEST(Race, WhoFailedNeverWinsAgainstWhoDidNot) {
  std::vector<Racer> racers = {racer(0.1, 5, 1), racer(1, 5, 1)};
  racers[0].standing = Standing::kFailed;
  EXPECT_EQ(cheapest(racers), 1U);
  EXPECT_EQ(fastest(racers), 1U);
  racers[1].standing = Standing::kFailed;
  EXPECT_EQ(cheapest(racers), 0U);
}

// Standings never come back: one that is out stays out, whatever comes later.
TEST(Race, AStandingIsKept) {
  for (const Standing standing :
       {Standing::kLost,
        Standing::kCapped,
        Standing::kEnough,
        Standing::kFailed}) {
    std::vector<Racer> racers = {racer(1, 5, 1), racer(0.5, 5, 1)};
    racers[1].standing = standing;
    EXPECT_EQ(judge(racers)[1].standing, standing);
    EXPECT_TRUE(judge(racers)[1].reason.empty());
  }
}

// Properties over random fields: someone always goes on or has seen enough;
// prices scaled together change no ruling; order changes no ruling.
TEST(Race, PropertiesOfRandomFields) {
  std::mt19937 random(5);
  std::lognormal_distribution<double> times(0, 1);
  std::lognormal_distribution<double> prices(-1, 1);
  std::uniform_int_distribution<int> sizes(1, 12);
  std::uniform_int_distribution<int> counts(1, 70);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<Racer> racers;
    const int size = sizes(random);
    for (int i = 0; i < size; ++i) {
      racers.push_back(racer(times(random), counts(random), prices(random)));
    }
    const auto rulings = judge(racers);
    bool somebody = false;
    for (const Ruling& ruling : rulings) {
      somebody = somebody || ruling.standing == Standing::kRacing ||
                 ruling.standing == Standing::kEnough;
      EXPECT_EQ(ruling.reason.empty(), ruling.standing == Standing::kRacing);
    }
    EXPECT_TRUE(somebody);
    EXPECT_NE(rulings[*cheapest(racers)].standing, Standing::kLost);
    std::vector<Racer> dearer = racers;
    for (Racer& one : dearer) {
      one.dollars_per_hour *= 7;
      one.dollars *= 7;
    }
    const auto again = judge(dearer);
    std::vector<Racer> turned(racers.rbegin(), racers.rend());
    const auto backwards = judge(turned);
    for (size_t i = 0; i < racers.size(); ++i) {
      EXPECT_EQ(rulings[i].standing, again[i].standing);
      EXPECT_EQ(rulings[i].standing, backwards[racers.size() - 1 - i].standing);
    }
  }
}

}  // namespace
}  // namespace lockstep::economics
