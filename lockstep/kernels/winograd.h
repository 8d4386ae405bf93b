#pragma once

// The smallest of Winograd's convolutions, F(2x2, 3x3) (Lavin and Gray, arXiv
// 1509.09308): a 3x3 convolution of stride 1 and padding 1 as sixteen matrix
// products over tiles of 2x2 pixels, with 4/9 of the multiplications. These
// are the sums around the products; the products are whoever's who calls.
// CPU alone: a GPU has it in its libraries. Tiles do not depend on each other:
// threads may share them.

#include <cstdint>

namespace lockstep::kernels {

constexpr int64_t kWinogradProducts = 16;

// A map in channels_last, [images, height, width, channels], of any size; the
// tiles [first, last) of all images', row by row.
struct WinogradMap {
  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t first = 0;
  int64_t last = 0;
  // In the order that weights seen from behind have: for the gradient of a
  // convolution's input, with the same weights.
  bool reversed = false;

  int64_t tile_rows() const { return (height + 1) / 2; }
  int64_t tile_columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
};

namespace cpu {

// The map to the products' left sides, [16, last - first, channels].
void winograd_input(const WinogradMap& m, const float* map, float* left);
void winograd_input(const WinogradMap& m, const double* map, double* left);

// The gradient of the map that winograd_output() makes to the gradient of the
// products, [16, last - first, channels].
void winograd_gradient(const WinogradMap& m, const float* map, float* products);
void winograd_gradient(
    const WinogradMap& m,
    const double* map,
    double* products);

// The products, [16, last - first, channels], to the map; bias [channels] (or
// null) and a LeakyReLU of `slope` (1: none) on the way.
void winograd_output(
    const WinogradMap& m,
    const float* products,
    const float* bias,
    double slope,
    float* map);
void winograd_output(
    const WinogradMap& m,
    const double* products,
    const double* bias,
    double slope,
    double* map);

}  // namespace cpu
}  // namespace lockstep::kernels
