#include "lockstep/record/metric_means.h"

#include <gtest/gtest.h>

namespace lockstep::record {
namespace {

wire::Event told(int rank, int64_t step, double loss) {
  return {0, rank, "n", wire::Metric{step, 0, {{"loss", loss}}}};
}

std::map<int64_t, double> losses(const MetricMeans& means) {
  std::map<int64_t, double> found;
  for (const auto& row : means.rows()) {
    found[row.step] = row.values.at("loss");
  }
  return found;
}

TEST(MetricMeans, AreOverRanks) {
  MetricMeans means;
  for (const int rank : {1, 0, 2}) {
    means.take(told(rank, 5, rank));
  }
  EXPECT_EQ(losses(means), (std::map<int64_t, double>{{5, 1}}));
}

TEST(MetricMeans, TakeWhatARankToldLast) {
  MetricMeans means;
  means.take(told(0, 1, 8));
  means.take(told(1, 1, 4));
  means.take(told(0, 1, 2));
  EXPECT_EQ(losses(means), (std::map<int64_t, double>{{1, 3}}));
}

TEST(MetricMeans, ANewGenerationTakesThePlaceOfTheOld) {
  MetricMeans means;
  for (const int64_t step : {1, 2, 3}) {
    means.take(told(0, step, 1));
    means.take(told(1, step, 3));
  }
  means.take({0, -1, "n", wire::Decision{"restart", "rank 1 failed"}});
  for (const int64_t step : {3, 4}) {
    means.take(told(0, step, 100));  // rank 1 did not come back
  }
  EXPECT_EQ(
      losses(means),
      (std::map<int64_t, double>{{1, 2}, {2, 2}, {3, 100}, {4, 100}}));
}

}  // namespace
}  // namespace lockstep::record
