#include "lockstep/forest/binning.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/forest/encode.h"
#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

constexpr size_t kPadded = kMaxBins;  // edges of a feature, and one more

// Between a and b, and below b also when they are neighbours.
float middle(float a, float b) {
  const float half = a + (b - a) / 2;
  return half < b && half >= a ? half : a;
}

std::vector<float> edges_of(std::vector<float> values, size_t max_bins) {
  std::sort(values.begin(), values.end());
  std::vector<float> distinct;
  std::unique_copy(values.begin(), values.end(), std::back_inserter(distinct));
  std::vector<float> edges;
  if (distinct.size() <= max_bins) {
    for (size_t i = 1; i < distinct.size(); ++i) {
      edges.push_back(middle(distinct[i - 1], distinct[i]));
    }
    return edges;
  }
  for (size_t i = 1; i < max_bins; ++i) {
    const size_t at = i * values.size() / max_bins;
    const float below = values[at - 1];
    const auto above = std::upper_bound(values.begin(), values.end(), below);
    if (above == values.end()) {
      break;
    }
    const float edge = middle(below, *above);
    if (edges.empty() || edge > edges.back()) {
      edges.push_back(edge);
    }
  }
  return edges;
}

}  // namespace

Binning::Binning(std::vector<std::vector<float>> edges)
    : edges_(std::move(edges)) {
  padded_.assign(
      edges_.size() * kPadded, std::numeric_limits<float>::infinity());
  for (size_t f = 0; f < edges_.size(); ++f) {
    std::copy(
        edges_[f].begin(), edges_[f].end(), padded_.begin() + f * kPadded);
  }
}

Binning Binning::make(
    std::span<const float> sample,
    size_t num_features,
    size_t max_bins,
    int threads) {
  std::vector<std::vector<float>> edges(num_features);
  const size_t rows = num_features == 0 ? 0 : sample.size() / num_features;
  for_pieces(num_features, threads, [&](size_t f, size_t) {
    std::vector<float> values(rows);
    for (size_t i = 0; i < rows; ++i) {
      values[i] = sample[i * num_features + f];
    }
    edges[f] = edges_of(std::move(values), max_bins);
  });
  return Binning(std::move(edges));
}

float Binning::threshold(size_t feature, size_t bin) const {
  const bool known = feature < edges_.size() && bin < edges_[feature].size();
  return known ? edges_[feature][bin] : std::numeric_limits<float>::infinity();
}

void Binning::encode(std::span<const float> rows, uint8_t* bins) const {
  const size_t features = edges_.size();
  const size_t count = features == 0 ? 0 : rows.size() / features;
  encode_bins(rows.first(count * features), padded_.data(), features, bins);
}

}  // namespace lockstep::forest
