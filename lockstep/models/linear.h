#pragma once

// A linear layer over tokens, y = x W^T + b, computed the way that is fastest
// on a CPU in fp32: forward and the gradient of x as 1x1 convolutions of
// oneDNN, which run 7 to 12% faster than its matrix product where MKL takes
// its path for other makers' processors, and add the bias on the way; the
// gradient of W as one matrix product (docs/benchmarks.md). Few rows are matrix
// products throughout. Elsewhere it is at::linear.

#include <torch/nn/modules/linear.h>

namespace lockstep::models {

// `x`: [batch, length, in], `layer` with a bias.
at::Tensor token_linear(torch::nn::Linear& layer, const at::Tensor& x);

}  // namespace lockstep::models
