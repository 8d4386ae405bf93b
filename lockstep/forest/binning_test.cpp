#include "lockstep/forest/binning.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::forest {
namespace {

TEST(Binning, FewValuesAreKeptApartInTheirMiddle) {
  const std::vector<float> sample = {3, 1, 2, 2, 1, 3, 3};
  const auto binning = Binning::make(sample, 1, 256);
  EXPECT_EQ(binning.edges(0), (std::vector<float>{1.5, 2.5}));
  std::vector<uint8_t> bins(5);
  const std::vector<float> values = {-10, 1.5, 1.6F, 2.5, 99};
  binning.encode(values, bins.data());
  EXPECT_EQ(bins, (std::vector<uint8_t>{0, 0, 1, 1, 2}));
}

TEST(Binning, NeighbouringFloatsAreToldApart) {
  const float one = 1;
  const float next = std::nextafter(one, 2.F);
  const auto binning = Binning::make(std::vector<float>{one, next}, 1, 256);
  std::vector<uint8_t> bins(2);
  binning.encode(std::vector<float>{one, next}, bins.data());
  EXPECT_EQ(bins, (std::vector<uint8_t>{0, 1}));
}

TEST(Binning, ManyValuesFillBinsEvenly) {
  std::mt19937 generator(5);
  std::lognormal_distribution<float> draw(0, 2);
  std::vector<float> sample(20000);
  for (float& value : sample) {
    value = draw(generator);
  }
  const auto binning = Binning::make(sample, 1, 256);
  EXPECT_EQ(binning.edges(0).size(), 255U);
  std::vector<uint8_t> bins(sample.size());
  binning.encode(sample, bins.data());
  std::vector<int> counts(256);
  for (size_t i = 0; i < sample.size(); ++i) {
    ++counts[bins[i]];
    EXPECT_LE(sample[i], binning.threshold(0, bins[i]));
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 20000 / 256, 2);
  }
}

TEST(Binning, OneFrequentValueTakesOneBin) {
  std::vector<float> sample(1000, 5);
  for (int i = 0; i < 400; ++i) {
    sample.push_back(static_cast<float>(10 + i));
  }
  const auto binning = Binning::make(sample, 1, 16);
  EXPECT_LE(binning.edges(0).size(), 15U);
  EXPECT_GT(binning.edges(0).front(), 5);
}

TEST(Binning, ConstantFeatureHasNoEdge) {
  const auto binning = Binning::make(std::vector<float>{4, 4, 4}, 1, 256);
  EXPECT_TRUE(binning.edges(0).empty());
  EXPECT_TRUE(std::isinf(binning.threshold(0, 0)));
}

}  // namespace
}  // namespace lockstep::forest
