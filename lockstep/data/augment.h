#pragma once

// Batches made ready for a model on its device, from 8-bit pixels (resized,
// normalised) or from floats that the loader has made: random flips, random
// crops out of a padded image, mixup (Zhang et al., arXiv 1710.09412). All
// draws come from a stream named by `key` alone, made on the CPU: equal keys
// give equal batches on every device, so a resumed run repeats them. The
// functions below each do one thing and work on any device.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace lockstep::data {

struct AugmentOptions {
  int64_t image_size = 224;
  bool flip = false;
  int64_t padding = 0;  // pixels around the image it is cropped from
  double mixup = 0;     // alpha of Beta(alpha, alpha); 0: none
  std::array<float, 3> mean = {.5f, .5f, .5f};
  std::array<float, 3> stddev = {.5f, .5f, .5f};
};

struct Augmented {
  at::Tensor images;  // [n, c, size, size], float, normalised
  at::Tensor labels;  // [n]
  // With mixup: image i has `share` of itself and the rest of the one whose
  // label is others[i]. Undefined without.
  at::Tensor others{};
  double share = 1;
};

// What is random in a batch, in page-locked memory where there is a GPU: for
// kernels that do all of it at once. The same draws as below.
struct Draws {
  // int32 [n, 3]: mirrored, row and column of the crop. Undefined without
  // flips and padding.
  at::Tensor moves{};
  at::Tensor partners{};  // int64 [n]; undefined without mixup
  double share = 1;
};
Draws draw(int64_t count, const AugmentOptions& options, uint64_t key);

// `images`: uint8 of any size, or normalised floats. Only what is random
// depends on `key`; without flips, padding and mixup it is the plain batch.
Augmented augmented(
    const at::Tensor& images,
    const at::Tensor& labels,
    const AugmentOptions& options,
    uint64_t key);

// uint8 [n, c, h, w] -> float [n, c, size, size], channels_last: bilinear with
// anti-aliasing, then (x / 255 - mean) / std, as the loader's.
at::Tensor normalised(const at::Tensor& pixels, const AugmentOptions& options);

// Mirrors images[i] left and right where mask[i].
at::Tensor flipped(const at::Tensor& images, const at::Tensor& mask);

// The h x w window at row down[i], column across[i] (0 to 2 x padding) of
// images[i] with `padding` pixels of `fill` around it.
at::Tensor cropped(
    const at::Tensor& images,
    int64_t padding,
    const at::Tensor& down,
    const at::Tensor& across,
    double fill = 0);

}  // namespace lockstep::data
