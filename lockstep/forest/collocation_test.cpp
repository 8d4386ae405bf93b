#include "lockstep/forest/collocation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::forest {
namespace {

// Pixels about a kilometre apart, turned against the meridian, like a pass.
Swath make_swath(size_t rows, size_t columns, double lat, double lon) {
  Swath swath{rows, columns, {}, {}};
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const double along = .009 * static_cast<double>(r);
      const double across = .009 * static_cast<double>(c);
      swath.latitude.push_back(
          static_cast<float>(lat + .97 * along - .2 * across));
      double over = lon + (.2 * along + .97 * across) / std::cos(lat / 57.3);
      over = over > 180 ? over - 360 : over;
      swath.longitude.push_back(static_cast<float>(over));
    }
  }
  return swath;
}

TEST(Haversine, KnownDistances) {
  EXPECT_NEAR(haversine(0, 0, 0, 180), 3.14159265 * 6373, 1e-3);
  EXPECT_NEAR(haversine(0, 0, 1, 0), 111.2298, 1e-3);
  EXPECT_NEAR(haversine(10, 179.9, 10, -179.9), 21.908, 1e-2);
}

TEST(SwathSearch, FindsWhatLookingAtEveryPixelFinds) {
  for (const double lon : {20., 179.2}) {
    const auto swath = make_swath(150, 170, 40, lon);
    const SwathSearch search(swath);
    std::mt19937 generator(4);
    std::uniform_real_distribution<double> up(39.5, 41.8);
    std::uniform_real_distribution<double> over(lon - .3, lon + 2.8);
    int found = 0;
    for (int i = 0; i < 300; ++i) {
      const double lat = up(generator);
      const double at = over(generator);
      double least = 1e9;
      for (size_t p = 0; p < swath.latitude.size(); ++p) {
        least = std::min(
            least, haversine(lat, at, swath.latitude[p], swath.longitude[p]));
      }
      const auto nearest = search.nearest(lat, at, 5);
      EXPECT_EQ(nearest.has_value(), least < 5) << lat << " " << at;
      if (nearest) {
        ++found;
        EXPECT_NEAR(nearest->kilometres, least, 1e-9);
      }
    }
    EXPECT_GT(found, 60);
  }
}

TEST(SwathSearch, PixelsWithoutAPlaceArePassedOver) {
  auto swath = make_swath(40, 40, 10, 10);
  for (float& value : swath.latitude) {
    value = -999.9F;
  }
  EXPECT_FALSE(SwathSearch(swath).nearest(10, 10, 5));
}

TEST(CloudPhase, IsBitsSixAndSeven) {
  EXPECT_EQ(cloud_phase(0), 0);
  EXPECT_EQ(cloud_phase(0x20), 1);
  EXPECT_EQ(cloud_phase(0x40), 2);
  EXPECT_EQ(cloud_phase(0x60), 3);
  EXPECT_EQ(cloud_phase(0xff9f), 0);
}

}  // namespace
}  // namespace lockstep::forest
