#include "lockstep/economics/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <span>
#include <vector>

namespace lockstep::economics {
namespace {

TEST(Moments, MeanAndVarianceOfKnownValues) {
  const std::array values = {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0};
  const Moments moments(values);
  EXPECT_EQ(moments.count(), 8U);
  EXPECT_DOUBLE_EQ(moments.mean(), 5);
  EXPECT_NEAR(*moments.variance(), 32.0 / 7, 1e-12);
  EXPECT_NEAR(*moments.standard_error(), std::sqrt(32.0 / 7 / 8), 1e-12);
}

TEST(Moments, OneValueHasNoVariance) {
  Moments moments;
  EXPECT_EQ(moments.mean(), 0);
  EXPECT_FALSE(moments.variance());
  moments.add(3);
  EXPECT_EQ(moments.mean(), 3);
  EXPECT_FALSE(moments.variance());
  EXPECT_FALSE(half_width(moments));
  EXPECT_FALSE(mean_interval(moments));
}

TEST(Moments, SmallSpreadOnALargeMeanSurvives) {
  Moments moments;
  for (const double offset : {0.0, 1.0, 2.0}) {
    moments.add(1e9 + offset);
  }
  EXPECT_NEAR(*moments.variance(), 1, 1e-6);
}

TEST(Moments, MergedIsAsTakenTogether) {
  const std::array values = {1.0, 4.0, 9.0, 16.0, 25.0, 36.0};
  for (size_t cut = 0; cut <= values.size(); ++cut) {
    const std::span<const double> all = values;
    Moments left(all.first(cut));
    left.merge(Moments(all.subspan(cut)));
    const Moments whole(values);
    EXPECT_EQ(left.count(), whole.count());
    EXPECT_NEAR(left.mean(), whole.mean(), 1e-12);
    EXPECT_NEAR(*left.variance(), *whole.variance(), 1e-9);
  }
}

// Tables of Student's t, two-sided 95% and 99%.
TEST(StudentT, QuantilesOfTheTables) {
  const std::vector<std::array<double, 3>> table = {
      {1, 12.7062047362, 63.6567411629},
      {2, 4.3026527297, 9.9248432009},
      {3, 3.1824463053, 5.8409093097},
      {4, 2.7764451052, 4.6040948713},
      {9, 2.2621571628, 3.2498355416},
      {30, 2.0422724563, 2.7499956536},
      {120, 1.9799304051, 2.6174211492},
      {1e15, 1.9599639845, 2.5758293035},
  };
  for (const auto& [degrees, five, one] : table) {
    EXPECT_NEAR(student_t_quantile(0.975, degrees), five, 1e-8 * five)
        << degrees;
    EXPECT_NEAR(student_t_quantile(0.995, degrees), one, 1e-8 * one) << degrees;
    EXPECT_NEAR(student_t_quantile(0.025, degrees), -five, 1e-8 * five);
  }
  EXPECT_EQ(student_t_quantile(0.5, 7), 0);
}

TEST(StudentT, QuantileInvertsTheDistribution) {
  for (const double degrees : {0.7, 1.0, 2.5, 10.0, 1000.0}) {
    for (const double p : {0.001, 0.1, 0.3, 0.6, 0.9, 0.9999}) {
      EXPECT_NEAR(
          student_t_cdf(student_t_quantile(p, degrees), degrees), p, 1e-10)
          << p << " of " << degrees;
    }
  }
}

TEST(Intervals, OfAMean) {
  // Three repeats of 10, 11 and 12 s: 4.3027 x 1 / sqrt(3).
  const std::array values = {10.0, 11.0, 12.0};
  const Moments moments(values);
  EXPECT_NEAR(*half_width(moments), 2.484137712, 1e-8);
  const auto interval = mean_interval(moments);
  EXPECT_NEAR(interval->low, 11 - 2.484137712, 1e-8);
  EXPECT_NEAR(interval->high, 11 + 2.484137712, 1e-8);
  EXPECT_LT(*half_width(moments, 0.5), *half_width(moments, 0.9));
}

TEST(Intervals, OfARatioEncloseIt) {
  const std::array slow = {10.0, 10.2, 9.8, 10.1};
  const std::array fast = {5.0, 5.1, 4.9, 5.05};
  const Moments above(slow);
  const Moments below(fast);
  const auto interval = ratio_interval(above, below);
  ASSERT_TRUE(interval);
  const double ratio = above.mean() / below.mean();
  EXPECT_LT(interval->low, ratio);
  EXPECT_GT(interval->high, ratio);
  EXPECT_LT(interval->high - interval->low, 0.3);
}

TEST(Intervals, OfEqualValuesHaveNoWidth) {
  const std::array slow = {10.0, 10.0};
  const std::array fast = {5.0, 5.0};
  const auto interval = ratio_interval(Moments(slow), Moments(fast));
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->low, 2);
  EXPECT_EQ(interval->high, 2);
}

TEST(Intervals, WithoutEnoughKnowledgeThereIsNone) {
  const std::array one = {10.0};
  const std::array two = {9.0, 11.0};
  const std::array wild = {-5.0, 6.0};
  EXPECT_FALSE(ratio_interval(Moments(one), Moments(two)));
  EXPECT_FALSE(ratio_interval(Moments(two), Moments(one)));
  EXPECT_FALSE(ratio_interval(Moments(two), Moments(wild)));
}

// 95% intervals must hold the truth in about 95% of the cases.
TEST(Intervals, CoverTheTruthAsOftenAsTheySay) {
  std::mt19937 random(7);
  std::normal_distribution<double> slow(12, 1);
  std::normal_distribution<double> fast(4, 0.2);
  constexpr int kTrials = 4000;
  int means = 0;
  int ratios = 0;
  for (int i = 0; i < kTrials; ++i) {
    Moments above;
    Moments below;
    for (int repeat = 0; repeat < 4; ++repeat) {
      above.add(slow(random));
      below.add(fast(random));
    }
    const auto mean = mean_interval(above);
    means += mean->low <= 12 && 12 <= mean->high ? 1 : 0;
    const auto ratio = ratio_interval(above, below);
    ratios += ratio->low <= 3 && 3 <= ratio->high ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(means) / kTrials, 0.95, 0.015);
  EXPECT_NEAR(static_cast<double>(ratios) / kTrials, 0.95, 0.02);
}

}  // namespace
}  // namespace lockstep::economics
