#pragma once

// A 3x3 convolution (stride 1, padding 1) with bias and LeakyReLU by Winograd's
// F(2x2, 3x3) (kernels/winograd.h): on a CPU in channels_last, fp32 and fp64,
// with 4/9 of the multiplications of the plain sum, forward, for the input's
// gradient and for the weight's. oneDNN runs near what the core can do, so only
// fewer multiplications are faster, where products run as fast. Rounding is
// about twice the plain sum's. The weight's gradient is added straight to .grad
// (sink.h).

#include <ATen/core/Tensor.h>

namespace lockstep::models {

// Whether it is faster than oneDNN's convolutions on this processor.
bool winograd_pays();

// Whether it can be used and has enough to do: not for few channels or pixels,
// nor under autocast.
bool takes_winograd(const at::Tensor& x, const at::Tensor& weight);

// The weights as the products read them, [16, out, in].
at::Tensor winograd_weight(const at::Tensor& weight);

// `bias` may be undefined; slope 1 is no activation. `ready` is
// winograd_weight() of weights that do not change.
at::Tensor winograd_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias = {},
    double slope = 1,
    const at::Tensor& ready = {});

}  // namespace lockstep::models
