#pragma once

// at::max_pool2d of square windows. In channels_last and bf16 on a GPU by
// lockstep/kernels (max_pool.h), whose backward gathers instead of scattering.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

struct Pooling {
  int64_t window = 2;
  int64_t stride = 2;
  int64_t padding = 0;
};

at::Tensor max_pool(const at::Tensor& x, const Pooling& pooling);

}  // namespace lockstep::models
