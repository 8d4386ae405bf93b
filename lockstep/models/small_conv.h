#pragma once

// conv2d without bias, square kernel, for networks whose last maps have few
// pixels and many weights (ResNet's last stages on small images). On a CPU in
// channels_last such a layer is matrix products over the weights as they lie:
// for each pixel of the output and each row of the kernel, the pixels of all
// images that the row meets times its weights. Padding costs nothing, oneDNN's
// copy of the weights into its own order falls away (forward, for the input
// and for the weights), and the weight gradient is added straight to .grad
// (sink.h). Elsewhere, and under autocast, it is at::conv2d. fp32 and fp64.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

// Padding is half the kernel's side.
at::Tensor
small_conv(const at::Tensor& x, const at::Tensor& weight, int64_t stride = 1);

// Whether small_conv() takes the products (for its tests).
bool takes_products(
    const at::Tensor& x,
    const at::Tensor& weight,
    int64_t stride);

}  // namespace lockstep::models
