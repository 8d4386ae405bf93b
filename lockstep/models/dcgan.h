#pragma once

// DCGAN (Radford et al., arXiv 1511.06434): a generator of transposed
// convolutions and a discriminator of strided ones, no biases, PyTorch's
// default initialisation. Parameter names are those of the usual PyTorch
// script (main.N.weight), so checkpoints exchange. Plain modules: no
// parallelism, any device, any memory format.

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

namespace lockstep::models {

struct DcganOptions {
  int64_t image_size = 64;  // 4 x a power of two, from 8 to 512
  int64_t channels = 3;
  int64_t nz = 100;  // length of the noise
  int64_t ngf = 64;  // width of the generator's last hidden layer
  int64_t ndf = 64;  // width of the discriminator's first layer
};

// Throws std::invalid_argument with the accepted sizes.
void check_options(const DcganOptions& options);

class DcganGenerator : public torch::nn::Module {
 public:
  explicit DcganGenerator(const DcganOptions& options);
  // [n, nz, 1, 1] -> [n, channels, size, size] in (-1, 1).
  at::Tensor forward(const at::Tensor& noise);

 private:
  torch::nn::Sequential main_;
};

class DcganDiscriminator : public torch::nn::Module {
 public:
  explicit DcganDiscriminator(const DcganOptions& options);
  // [n, channels, size, size] -> [n] logits; sigmoid belongs to the loss,
  // where it is computed stably.
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Sequential main_;
};

}  // namespace lockstep::models
