#pragma once

// kernels/windows.h as operations with gradients, each the other's: the 4x4
// windows (stride 2, padding 1) of maps in channels_last as a matrix, and the
// sum of windows as a map. A convolution of few channels is a product between.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

// [n, c, h, w] -> [n x h/2 x w/2, 16 x c]; h and w are even.
at::Tensor unfold_windows(const at::Tensor& map);

// [n x h/2 x w/2, 16 x c] -> [n, c, h, w].
at::Tensor
fold_windows(const at::Tensor& rows, int64_t n, int64_t h, int64_t w);

}  // namespace lockstep::models
