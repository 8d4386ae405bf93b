#pragma once

// The largest value of each window of a map in channels_last, and back. A
// window may reach over the edge: what lies outside never wins. Of equal values
// the first wins, row by row, and NaN before all, as with PyTorch. Forward
// leaves the place of each winner in its window, a byte instead of PyTorch's
// eight; backward gathers with them: no atomic sums, equal bits.
// cuda: bf16, channels a multiple of 8.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct MaxPoolShape {
  int64_t images = 0;
  int64_t channels = 0;
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t window = 2;  // at most 15, at least the stride
  int64_t stride = 2;
  int64_t padding = 0;  // less than the window
  Type type = Type::kBFloat16;

  int64_t pooled(int64_t size) const {
    return (size + 2 * padding - window) / stride + 1;
  }
};

struct MaxPoolForward : MaxPoolShape {
  const void* x = nullptr;     // [images, height, width, channels]
  void* y = nullptr;           // [images, pooled, pooled, channels]
  uint8_t* winners = nullptr;  // as y: row x window + column
};

struct MaxPoolBackward : MaxPoolShape {
  const void* dy = nullptr;
  const uint8_t* winners = nullptr;
  void* dx = nullptr;
};

namespace cpu {
void max_pool_forward(const MaxPoolForward& m);
void max_pool_backward(const MaxPoolBackward& m);
}  // namespace cpu

namespace cuda {
void max_pool_forward(const MaxPoolForward& m, Stream stream);
void max_pool_backward(const MaxPoolBackward& m, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
