#pragma once

// Turns 8-bit images into normalised floats of another size, as PyTorch's
// interpolate(mode, antialias=True, align_corners=False) on x / 255 followed by
// (x - mean) / std does, within 2e-6 of the pixel range (docs/data.md). The
// aspect is not kept. A Resizer holds the weights of the sizes it has seen and
// its scratch rows: one a thread.

#include <array>
#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

enum class Resize { kBilinear, kBicubic };  // antialiased, as PyTorch's

struct ResizeOptions {
  int height = 64;
  int width = 64;
  Resize resize = Resize::kBilinear;
  // (pixel / 255 - mean) / std by channel; .5 and .5 give [-1, 1].
  std::array<float, 3> mean = {.5f, .5f, .5f};
  std::array<float, 3> stddev = {.5f, .5f, .5f};
  bool channels_last = true;  // rows of interleaved channels, else planes
};

class Resizer {
 public:
  // Throws DataError for sizes below 1 or a standard deviation of 0.
  explicit Resizer(const ResizeOptions& options);
  ~Resizer();
  // Writes channels x height x width floats; `flip` mirrors left and right.
  void run(const RawImage& image, bool flip, float* output);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
