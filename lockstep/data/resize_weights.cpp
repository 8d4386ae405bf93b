#include "lockstep/data/resize_weights.h"

#include <algorithm>
#include <cmath>

namespace lockstep::data {
namespace {

// Everything rounds to float where PyTorch's kernels do: with exact centres
// the results would differ from theirs by their own error, which grows with
// the size of the image.
float triangle(float x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

// Keys' cubic with a = -.5, which PyTorch takes when it antialiases.
float cubic(float x) {
  constexpr float kA = -.5f;
  x = std::abs(x);
  if (x < 1) {
    return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  }
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
}

}  // namespace

Axis make_axis(int input, int output, Resize resize) {
  const bool bilinear = resize == Resize::kBilinear;
  const float scale = static_cast<float>(input) / static_cast<float>(output);
  const float widening = std::max(scale, 1.f);
  const float narrowing = scale >= 1 ? 1 / scale : 1;
  const float support = (bilinear ? 1.f : 2.f) * widening;
  struct Window {
    int begin;
    std::vector<float> weights;
  };
  std::vector<Window> windows(static_cast<size_t>(output));
  size_t taps = 1;
  for (int i = 0; i < output; ++i) {
    const auto center = static_cast<float>(scale * (i + .5));
    const int begin = std::max(static_cast<int>(center - support + .5), 0);
    const int end = std::min(static_cast<int>(center + support + .5), input);
    Window& window = windows[static_cast<size_t>(i)];
    window.begin = begin;
    float sum = 0;
    for (int j = begin; j < end; ++j) {
      const auto x =
          static_cast<float>((static_cast<float>(j) - center + .5) * narrowing);
      window.weights.push_back(bilinear ? triangle(x) : cubic(x));
      sum += window.weights.back();
    }
    for (float& weight : window.weights) {
      weight /= sum;
    }
    while (!window.weights.empty() && window.weights.back() == 0) {
      window.weights.pop_back();
    }
    taps = std::max(taps, window.weights.size());
  }
  Axis axis{input, output, static_cast<int>(taps), {}, {}};
  axis.first.resize(static_cast<size_t>(output));
  axis.weights.resize(static_cast<size_t>(output) * taps);
  for (size_t i = 0; i < windows.size(); ++i) {
    const Window& window = windows[i];
    const int first = std::min(window.begin, input - axis.taps);
    axis.first[i] = first;
    std::copy(
        window.weights.begin(),
        window.weights.end(),
        axis.weights.begin() + static_cast<std::ptrdiff_t>(i * taps) +
            (window.begin - first));
  }
  return axis;
}

Axis mirrored(const Axis& axis) {
  Axis result = axis;
  std::reverse(result.first.begin(), result.first.end());
  const auto taps = static_cast<size_t>(axis.taps);
  for (size_t i = 0; i < axis.first.size(); ++i) {
    const size_t from = axis.first.size() - 1 - i;
    std::copy_n(
        axis.weights.begin() + static_cast<std::ptrdiff_t>(from * taps),
        taps,
        result.weights.begin() + static_cast<std::ptrdiff_t>(i * taps));
  }
  return result;
}

}  // namespace lockstep::data
