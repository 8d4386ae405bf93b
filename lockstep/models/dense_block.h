#pragma once

// The dense block of ESRGAN's generator: five 3x3 convolutions, each over the
// input and all earlier outputs, LeakyReLU after the first four; the last,
// times .2, is added to the input. Names as in the usual PyTorch script
// (b1.0.weight ... b5.0.bias).
//
// Two ways to the same numbers. Plainly, by concatenation: on a CPU, where the
// convolutions take all the time (docs/kernels.md has the measurement). By
// kernels, on a GPU in bf16: each map goes through one convolution to all that
// read it, and sums of parts of the results take the place of concatenations;
// backwards the gradient of an output is written where each convolution reads,
// and one product over all maps gives the gradients of all weights.

#include <array>

#include "lockstep/models/conv_act.h"

namespace lockstep::models {

constexpr size_t kDenseConvs = 5;
constexpr double kResidualScale = .2;
constexpr double kGeneratorSlope = .01;

using DenseParameters = std::array<at::Tensor, kDenseConvs>;

// By kernels: x [n, c, h, w] in the type of the arithmetic (on a GPU bf16),
// weights [c, i x c, 3, 3] in channels_last and biases [c] in fp32. c is a
// multiple of 8 whose eighth divides 256.
at::Tensor fused_dense_block(
    const at::Tensor& x,
    const DenseParameters& weights,
    const DenseParameters& biases);

class DenseBlock : public torch::nn::Module {
 public:
  explicit DenseBlock(int64_t filters);
  at::Tensor forward(const at::Tensor& x);

 private:
  bool takes_kernels(const at::Tensor& x) const;
  std::array<std::shared_ptr<Conv3>, kDenseConvs> convs_;
};

}  // namespace lockstep::models
