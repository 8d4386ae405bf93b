#pragma once

// 8-bit pixels of one size to what a network takes, by one kernel: cropped,
// mirrored, resized, normalised, cut into patches. bf16 on a GPU; fp32 through
// the CPU's twin. One thread.

#include <ATen/core/Tensor.h>

#include <array>
#include <map>

namespace lockstep::recipes {

struct PixelReaderOptions {
  int64_t size = 224;   // of an image, after
  int64_t patch = 224;  // divides it
  int64_t lead = 0;     // rows of zeros before an image's patches
  int64_t padding = 0;  // of crops
  std::array<float, 3> mean = {.5F, .5F, .5F};
  std::array<float, 3> stddev = {.5F, .5F, .5F};
};

class PixelReader {
 public:
  explicit PixelReader(const PixelReaderOptions& options) : options_(options) {}
  PixelReaderOptions& options() { return options_; }

  // `images`: uint8 [n, c, h, w] in channels_last; `moves`: int32 [n, 3]
  // (mirrored, row and column of the crop) or undefined. Gives
  // [n x (lead + patches), patch x patch x c].
  at::Tensor read(const at::Tensor& images, const at::Tensor& moves);
  // With one patch an image: [n, c, size, size] in channels_last.
  at::Tensor read_images(const at::Tensor& images);

 private:
  struct Axis {
    int taps = 0;
    at::Tensor first;
    at::Tensor weights;
  };
  const Axis& axis_of(int64_t input, c10::Device device);

  PixelReaderOptions options_;
  std::map<int64_t, Axis> axes_;  // by input size
};

}  // namespace lockstep::recipes
