#pragma once

// Two satellites over the same place: for each profile of a lidar's track the
// nearest pixel of an imager's swath. First every 32nd pixel in both axes, then
// every pixel around the best of those. Pure; distances by the haversine on a
// sphere of 6373 km.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::forest {

inline constexpr double kEarthKilometres = 6373;

// Degrees in, kilometres out.
double haversine(double lat1, double lon1, double lat2, double lon2);

// Places of pixels, row-major. One that is not on the globe is passed over.
struct Swath {
  size_t rows = 0;
  size_t columns = 0;
  std::vector<float> latitude;
  std::vector<float> longitude;
};

struct Nearest {
  size_t pixel = 0;
  double kilometres = 0;
};

class SwathSearch {
 public:
  explicit SwathSearch(const Swath& swath);  // keeps a reference
  // The nearest pixel closer than `within` kilometres.
  std::optional<Nearest>
  nearest(double latitude, double longitude, double within) const;

 private:
  void look_at(size_t pixel, double lat, double lon, Nearest& best) const;
  const Swath& swath_;
  std::vector<size_t> coarse_;  // pixels
  double reach_ = 0;            // from any pixel to its coarse one
};

// Bits 6 and 7 of a feature-classification flag, counted from 1: the phase of
// the cloud (0 unknown, 1 ice, 2 water, 3 oriented ice).
inline int cloud_phase(uint32_t flags) {
  return static_cast<int>((flags >> 5) & 3);
}

}  // namespace lockstep::forest
