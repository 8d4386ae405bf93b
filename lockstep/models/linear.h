#pragma once

// A linear layer over tokens, y = x W^T + b, computed the way that is fastest
// on a CPU in fp32: forward and both gradients as 1x1 convolutions of oneDNN,
// which add the bias on the way, because MKL takes its path for other makers'
// processors there: a tenth slower on one EPYC, half as fast on a newer one
// (docs/benchmarks.md). Few rows are matrix
// products. Elsewhere it is at::linear.

#include <torch/nn/modules/linear.h>

namespace lockstep::models {

// `x`: [batch, length, in], `layer` with a bias.
at::Tensor token_linear(torch::nn::Linear& layer, const at::Tensor& x);

}  // namespace lockstep::models
