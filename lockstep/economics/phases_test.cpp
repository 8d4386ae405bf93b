#include "lockstep/economics/phases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "lockstep/economics/robust.h"

namespace lockstep::economics {
namespace {

class Made {
 public:
  explicit Made(unsigned seed) : random_(seed) {}
  // `count` more values around `level`.
  Made& add(size_t count, double level, double sigma) {
    for (size_t i = 0; i < count; ++i) {
      values.push_back(level * std::exp(sigma * normal_(random_)));
    }
    return *this;
  }
  std::vector<double> values;

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_{0, 1};
};

TEST(Robust, MedianOfOddAndEven) {
  EXPECT_EQ(median(std::vector<double>{}), 0);
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
}

TEST(Robust, NoiseIsThatAroundTheLevels) {
  Made made(1);
  made.add(300, 1, 0.05).add(300, 9, 0.05);
  std::vector<double> logs;
  for (const double one : made.values) {
    logs.push_back(std::log(one));
  }
  EXPECT_NEAR(difference_noise(logs), 0.05, 0.01);
}

TEST(Robust, SlopeIgnoresSpikes) {
  std::vector<double> line;
  for (int i = 0; i < 100; ++i) {
    line.push_back(0.5 * i + (i % 9 == 0 ? 1000 : 0));
  }
  EXPECT_NEAR(theil_sen(line), 0.5, 0.01);
  std::vector<double> many(5000);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = 0.25 * static_cast<double>(i);
  }
  EXPECT_NEAR(theil_sen(many), 0.25, 1e-9);
}

TEST(Robust, TrendIsSureOfARiseAndCalmWithoutOne) {
  std::vector<double> rising;
  for (int i = 0; i < 20; ++i) {
    rising.push_back(i);
  }
  EXPECT_GT(trend(rising), 5);
  EXPECT_LT(trend(std::vector<double>(rising.rbegin(), rising.rend())), -5);
  EXPECT_EQ(trend(std::vector<double>(20, 1.0)), 0);
  int alarms = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    alarms += std::abs(trend(Made(seed).add(30, 1, 0.3).values)) > 3 ? 1 : 0;
  }
  EXPECT_LE(alarms, 8);
}

TEST(Phases, NothingHasNone) {
  EXPECT_TRUE(find_phases(std::vector<double>{}).empty());
  EXPECT_EQ(find_phases(std::vector<double>{1}).size(), 1U);
  EXPECT_EQ(find_phases(std::vector<double>{1, 5}).size(), 1U);
}

TEST(Phases, AStepIsFoundWhereItIs) {
  for (const double level : {0.5, 1.5, 3.0}) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      const auto phases =
          find_phases(Made(seed).add(12, 1, 0.05).add(15, level, 0.05).values);
      ASSERT_EQ(phases.size(), 2U) << level << " seed " << seed;
      EXPECT_NEAR(static_cast<double>(phases[0].end), 12, 1);
      EXPECT_EQ(phases[1].begin, phases[0].end);
      EXPECT_EQ(phases[1].end, 27U);
      EXPECT_NEAR(phases[1].median, level, 0.1 * level);
    }
  }
}

TEST(Phases, TheFirstIterationAloneMayBeOne) {
  Made made(4);
  made.add(1, 8, 0.02).add(20, 1, 0.02);
  const auto phases = find_phases(made.values);
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0].end, 1U);
}

// A level with noise of any size is one phase, nearly always.
TEST(Phases, NoiseMakesNone) {
  for (const double sigma : {0.02, 0.1, 0.3, 0.6}) {
    for (const size_t count : {5UL, 12UL, 40UL, 150UL}) {
      int alarms = 0;
      for (unsigned seed = 0; seed < 200; ++seed) {
        alarms += find_phases(Made(seed).add(count, 1, sigma).values).size() > 1
                      ? 1
                      : 0;
      }
      EXPECT_LE(alarms, 10) << "sigma " << sigma << ", " << count << " values";
    }
  }
}

TEST(Phases, SpikesMakeNone) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Made made(seed);
    made.add(60, 1, 0.05);
    for (size_t i = 7; i < made.values.size(); i += 10) {
      made.values[i] *= 20;  // a checkpoint
    }
    EXPECT_EQ(find_phases(made.values).size(), 1U) << "seed " << seed;
  }
}

TEST(Phases, ASlopeIsNoRowOfPhases) {
  Made made(6);
  made.add(60, 1, 0.01);
  for (size_t i = 0; i < made.values.size(); ++i) {
    made.values[i] *= std::exp(0.02 * static_cast<double>(i));
  }
  EXPECT_EQ(find_phases(made.values).size(), 1U);
}

TEST(Phases, LongSeriesAreCutToo) {
  const auto phases =
      find_phases(Made(2).add(5000, 1, 0.1).add(3000, 2, 0.1).values);
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_NEAR(static_cast<double>(phases[0].end), 5000, 64);
  EXPECT_EQ(phases[1].end, 8000U);
}

// Whatever comes: no gaps, no overlap, all of it.
TEST(Phases, AlwaysCoverTheSeries) {
  std::mt19937 random(9);
  std::uniform_int_distribution<size_t> sizes(1, 80);
  std::cauchy_distribution<double> wild(0, 1);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<double> values(sizes(random));
    for (double& one : values) {
      one = std::exp(std::clamp(wild(random), -20.0, 20.0));
    }
    size_t at = 0;
    for (const LevelPhase& phase : find_phases(values)) {
      EXPECT_EQ(phase.begin, at);
      EXPECT_GT(phase.end, phase.begin);
      at = phase.end;
    }
    EXPECT_EQ(at, values.size());
  }
}

}  // namespace
}  // namespace lockstep::economics
