#pragma once

// DCGAN (Radford et al., arXiv 1511.06434): a generator of transposed
// convolutions and a discriminator of strided ones, no biases, PyTorch's
// default initialisation. Parameter names are those of the usual PyTorch
// script (main.N.weight), so checkpoints exchange. Plain modules: no
// parallelism, any device, any memory format.

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <vector>

#include "lockstep/models/convolution.h"

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
  std::shared_ptr<Expand> first_;
  std::vector<std::shared_ptr<Double>> doubles_;
  std::vector<torch::nn::BatchNorm2d> norms_;  // one before each of them
};

class DcganDiscriminator : public torch::nn::Module {
 public:
  explicit DcganDiscriminator(const DcganOptions& options);
  // [n, channels, size, size] -> [n] logits; sigmoid belongs to the loss,
  // where it is computed stably. A batch of several `domains` (real and fake,
  // equally many images each) is normalised domain by domain, as if each had
  // come alone.
  at::Tensor forward(const at::Tensor& images, int64_t domains = 1);

 private:
  std::vector<std::shared_ptr<Halve>> halves_;
  std::vector<torch::nn::BatchNorm2d> norms_;  // behind all but the first
  std::shared_ptr<Contract> last_;
};

}  // namespace lockstep::models
