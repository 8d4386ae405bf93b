#include "lockstep/economics/robust.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::economics {
namespace {

constexpr size_t kMostPairs = 400;

// Evenly spread; their distance is the second.
std::pair<std::vector<double>, double> thinned(std::span<const double> values) {
  const size_t stride = (values.size() + kMostPairs - 1) / kMostPairs;
  std::vector<double> kept;
  for (size_t i = 0; i < values.size(); i += std::max<size_t>(stride, 1)) {
    kept.push_back(values[i]);
  }
  return {std::move(kept), static_cast<double>(std::max<size_t>(stride, 1))};
}

}  // namespace

double median(std::span<const double> values) {
  if (values.empty()) {
    return 0;
  }
  std::vector<double> sorted(values.begin(), values.end());
  const size_t middle = sorted.size() / 2;
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<long>(middle));
  const double upper = sorted[middle];
  if (sorted.size() % 2 == 1) {
    return upper;
  }
  const double lower = *std::max_element(
      sorted.begin(), sorted.begin() + static_cast<long>(middle));
  return lower + (upper - lower) / 2;
}

double difference_noise(std::span<const double> values) {
  if (values.size() < 2) {
    return 0;
  }
  std::vector<double> apart;
  apart.reserve(values.size() - 1);
  for (size_t i = 1; i < values.size(); ++i) {
    apart.push_back(std::abs(values[i] - values[i - 1]));
  }
  // median |N(0, 2 sigma^2)| = 0.6745 sqrt(2) sigma
  return median(apart) / (0.6744897501960817 * std::sqrt(2.0));
}

double theil_sen(std::span<const double> values) {
  const auto [kept, stride] = thinned(values);
  if (kept.size() < 2) {
    return 0;
  }
  std::vector<double> slopes;
  slopes.reserve(kept.size() * (kept.size() - 1) / 2);
  for (size_t i = 0; i < kept.size(); ++i) {
    for (size_t j = i + 1; j < kept.size(); ++j) {
      slopes.push_back(
          (kept[j] - kept[i]) / (stride * static_cast<double>(j - i)));
    }
  }
  return median(slopes);
}

double trend(std::span<const double> values) {
  const auto [kept, stride] = thinned(values);
  if (kept.size() < 3) {
    return 0;
  }
  double order = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    for (size_t j = i + 1; j < kept.size(); ++j) {
      order += kept[j] > kept[i] ? 1 : kept[j] < kept[i] ? -1 : 0;
    }
  }
  const auto n = static_cast<double>(kept.size());
  const double spread = std::sqrt(n * (n - 1) * (2 * n + 5) / 18);
  const double settled = order > 0 ? order - 1 : order < 0 ? order + 1 : 0;
  return settled / spread;
}

}  // namespace lockstep::economics
