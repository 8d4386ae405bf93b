#pragma once

// A 3x3 convolution with bias and LeakyReLU in one operation: what is kept for
// the way back is its output, not the sum before the activation, and on a GPU
// bias and activation are one kernel (kernels/bias_act.h). On a CPU it is
// Winograd's where that pays (winograd.h). Parameters are named and initialised
// as torch::nn::Conv2d's. Autocast is followed.

#include <torch/nn/module.h>

namespace lockstep::models {

constexpr double kNoActivation = 1;  // a LeakyReLU of slope 1

// `slope` 0 is a ReLU. Padding 1.
at::Tensor conv_act(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double slope = kNoActivation,
    int64_t stride = 1);

// In the type that autocast asks for.
at::Tensor as_autocast(const at::Tensor& tensor);

// Whether operations on x are done in bf16: its own type, or autocast's.
bool in_bf16(const at::Tensor& x);

// Whether kernels/bias_act.h is used for maps of `channels` made from x: on a
// GPU in bf16.
bool kernels_fit(const at::Tensor& x, int64_t channels);

class Conv3 : public torch::nn::Module {
 public:
  Conv3(
      int64_t in,
      int64_t out,
      double slope = kNoActivation,
      int64_t stride = 1);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;

 private:
  // What Winograd's products read of weights that are not trained: made once.
  const at::Tensor& ready();

  double slope_;
  int64_t stride_;
  at::Tensor ready_;
  at::Tensor ready_of_;  // the weights' memory then, and how often changed
  uint32_t ready_version_ = 0;
};

}  // namespace lockstep::models
