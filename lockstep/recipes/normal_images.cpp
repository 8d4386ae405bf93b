#include "lockstep/recipes/normal_images.h"

#include <torch/types.h>

namespace lockstep::recipes {
namespace {

// [1, c, 1, 1] on the device of `like`.
at::Tensor by_channel(
    const std::array<float, 3>& values,
    const at::Tensor& like) {
  auto made = at::empty({1, like.size(1), 1, 1}, at::kFloat);
  for (int64_t c = 0; c < like.size(1); ++c) {
    made.data_ptr<float>()[c] = values.at(static_cast<size_t>(c));
  }
  return made.to(like.device());
}

}  // namespace

at::Tensor to_pixels(const at::Tensor& normal) {
  const auto x = normal.to(at::kFloat);
  return (x * by_channel(kImageNetDeviation, x) + by_channel(kImageNetMean, x))
      .clamp(0, 1);
}

at::Tensor from_pixels(const at::Tensor& pixels) {
  const auto x = pixels.to(at::kFloat);
  return (x - by_channel(kImageNetMean, x)) / by_channel(kImageNetDeviation, x);
}

}  // namespace lockstep::recipes
