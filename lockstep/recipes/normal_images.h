#pragma once

// ImageNet's normalisation of pixels, as pretrained networks expect it.

#include <ATen/core/Tensor.h>

#include <array>

namespace lockstep::recipes {

inline constexpr std::array<float, 3> kImageNetMean = {.485F, .456F, .406F};
inline constexpr std::array<float, 3> kImageNetDeviation = {
    .229F,
    .224F,
    .225F};

// [n, c, h, w], normalised -> [0, 1], clamped; and the way there.
at::Tensor to_pixels(const at::Tensor& normal);
at::Tensor from_pixels(const at::Tensor& pixels);

}  // namespace lockstep::recipes
