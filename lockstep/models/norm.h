#pragma once

// BatchNorm with what follows it, over batches that hold several domains of
// equally many images (backbone.h): y = norm(x), relu(norm(x)), leaky or not,
// relu(norm(x) + past). In training each domain is normalised by its own
// statistics, and the running ones move once for each, in order; else the
// running ones normalise all. In channels_last, fp32 on a CPU and bf16 on a
// GPU, one function of lockstep/kernels does all of it (batch_norm.h);
// elsewhere it is LibTorch's own operations.

#include <torch/nn/modules/batchnorm.h>

namespace lockstep::models {

at::Tensor
norm(const at::Tensor& x, torch::nn::BatchNorm2d& layer, int64_t domains = 1);

at::Tensor norm_relu(
    const at::Tensor& x,
    torch::nn::BatchNorm2d& layer,
    int64_t domains = 1);

// With a ReLU that keeps `slope` of what is below zero.
at::Tensor norm_leaky_relu(
    const at::Tensor& x,
    torch::nn::BatchNorm2d& layer,
    double slope,
    int64_t domains = 1);

at::Tensor norm_add_relu(
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer,
    int64_t domains = 1);

}  // namespace lockstep::models
