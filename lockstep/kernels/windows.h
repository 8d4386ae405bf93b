#pragma once

// The 4x4 windows of an image, stride 2, padding 1, as the rows of a matrix,
// and back. With few channels a strided convolution has nothing to fill a
// GPU's matrix units with (cuDNN runs three channels at 16 TFLOP/s of some
// 700); by windows it is one product over rows of 16 x channels values.
// Channels_last: a row holds its window line by line.
//
//   unfold: rows[image, y, x] = image[2y-1 .. 2y+2, 2x-1 .. 2x+2], outside: 0
//   fold:   its transpose; each pixel is the sum of what four windows have of
//   it

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct Windows {
  int64_t images = 0;
  int64_t height = 0;  // of the image: even, as the width
  int64_t width = 0;
  int64_t channels = 0;  // cuda: 1 or 3
  Type type = Type::kBFloat16;
  const void* from = nullptr;
  void* to = nullptr;

  int64_t rows() const { return images * (height / 2) * (width / 2); }
};
// Whether cuda:: takes so many.
bool windows_fit(int64_t rows, int64_t channels);

namespace cpu {
void unfold(const Windows& w);
void fold(const Windows& w);
}  // namespace cpu

namespace cuda {
void unfold(const Windows& w, Stream stream);
void fold(const Windows& w, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
