#pragma once

// What the tests of our convolutions compare with: LibTorch's own in fp64.

#include <torch/types.h>

namespace lockstep::models {

inline at::Tensor
map(int64_t images, int64_t channels, int64_t height, int64_t width) {
  return at::randn({images, channels, height, width})
      .contiguous(at::MemoryFormat::ChannelsLast);
}

// A copy in the layout that it had, with a gradient of its own.
inline at::Tensor leaf(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.to(type).detach().clone().requires_grad_();
}

// Relative, by the norm.
inline double error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm().clamp_min(1e-9))
      .item<double>();
}

}  // namespace lockstep::models
