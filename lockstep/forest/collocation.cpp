#include "lockstep/forest/collocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace lockstep::forest {
namespace {

constexpr size_t kCoarse = 32;

bool on_globe(double latitude, double longitude) {
  return std::abs(latitude) <= 90 && std::abs(longitude) <= 360;
}

// Every kCoarse-th and the last, so that no edge is far from one.
std::vector<size_t> steps(size_t size) {
  std::vector<size_t> at;
  for (size_t i = 0; i < size; i += kCoarse) {
    at.push_back(i);
  }
  if (size > 0 && at.back() != size - 1) {
    at.push_back(size - 1);
  }
  return at;
}

}  // namespace

double haversine(double lat1, double lon1, double lat2, double lon2) {
  constexpr double kRadian = std::numbers::pi / 180;
  const double up = std::sin((lat2 - lat1) * kRadian / 2);
  const double across = std::sin((lon2 - lon1) * kRadian / 2);
  const double a = up * up + std::cos(lat1 * kRadian) *
                                 std::cos(lat2 * kRadian) * across * across;
  return 2 * kEarthKilometres * std::asin(std::sqrt(std::min(1., a)));
}

SwathSearch::SwathSearch(const Swath& swath) : swath_(swath) {
  const auto rows = steps(swath.rows);
  const auto columns = steps(swath.columns);
  for (const size_t row : rows) {
    for (const size_t column : columns) {
      const size_t pixel = row * swath.columns + column;
      if (on_globe(swath.latitude[pixel], swath.longitude[pixel])) {
        coarse_.push_back(pixel);
      }
    }
  }
  // The longest step between neighbouring coarse pixels bounds how far the
  // best of them may be from a place inside the swath.
  for (size_t i = 1; i < coarse_.size(); ++i) {
    const size_t a = coarse_[i - 1];
    const size_t b = coarse_[i];
    if (a / swath.columns == b / swath.columns) {
      reach_ = std::max(
          reach_,
          haversine(
              swath.latitude[a],
              swath.longitude[a],
              swath.latitude[b],
              swath.longitude[b]));
    }
  }
  reach_ = std::max(2 * reach_, 100.);
}

void SwathSearch::look_at(size_t pixel, double lat, double lon, Nearest& best)
    const {
  const double there = swath_.latitude[pixel];
  const double over = swath_.longitude[pixel];
  if (!on_globe(there, over)) {
    return;
  }
  const double distance = haversine(lat, lon, there, over);
  if (distance < best.kilometres) {
    best = {pixel, distance};
  }
}

std::optional<Nearest>
SwathSearch::nearest(double latitude, double longitude, double within) const {
  if (!on_globe(latitude, longitude)) {
    return std::nullopt;
  }
  Nearest best{0, std::numeric_limits<double>::infinity()};
  for (const size_t pixel : coarse_) {
    look_at(pixel, latitude, longitude, best);
  }
  if (best.kilometres > reach_ + within) {
    return std::nullopt;
  }
  const size_t row = best.pixel / swath_.columns;
  const size_t column = best.pixel % swath_.columns;
  const size_t first_row = row - std::min(row, kCoarse);
  const size_t last_row = std::min(swath_.rows, row + kCoarse + 1);
  const size_t first_column = column - std::min(column, kCoarse);
  const size_t last_column = std::min(swath_.columns, column + kCoarse + 1);
  for (size_t r = first_row; r < last_row; ++r) {
    for (size_t c = first_column; c < last_column; ++c) {
      look_at(r * swath_.columns + c, latitude, longitude, best);
    }
  }
  return best.kilometres < within ? std::optional(best) : std::nullopt;
}

}  // namespace lockstep::forest
