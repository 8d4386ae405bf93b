#pragma once

// ESRGAN (Wang et al., arXiv 1809.00219): a generator that makes images four
// times larger, of residual-in-residual dense blocks; a discriminator that
// judges patches; and the features of VGG19 by which images are compared.
// Parameter names are those of the usual PyTorch script and of torchvision.
// Plain modules: no parallelism, any device, any memory format.

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <vector>

#include "lockstep/models/dense_block.h"

namespace lockstep::models {

struct EsrganOptions {
  int64_t channels = 3;
  int64_t residual_blocks = 23;
  int64_t filters = 64;  // width of the generator
};

constexpr int64_t kUpscale = 4;

class EsrganGenerator : public torch::nn::Module {
 public:
  explicit EsrganGenerator(const EsrganOptions& options);
  // [n, channels, h, w] -> [n, channels, 4h, 4w].
  at::Tensor forward(const at::Tensor& low);
  // How many pixels of the input around its own an output pixel depends on.
  int64_t reach() const;

 private:
  using Rrdb = std::vector<std::shared_ptr<DenseBlock>>;
  std::vector<Rrdb> blocks_;
  std::shared_ptr<Conv3> conv1_;
  std::shared_ptr<Conv3> conv2_;
  std::vector<std::shared_ptr<Conv3>> enlarge_;
  std::shared_ptr<Conv3> smooth_;
  std::shared_ptr<Conv3> last_;
};

class EsrganDiscriminator : public torch::nn::Module {
 public:
  explicit EsrganDiscriminator(int64_t channels);
  // [n, channels, h, w] -> logits [n, 1, h / 16, w / 16], rounded up.
  at::Tensor forward(const at::Tensor& images);

 private:
  struct Layer {
    std::shared_ptr<Conv3> conv;
    // Behind it, with its LeakyReLU; null: the activation is the conv's own.
    torch::nn::BatchNorm2d norm = nullptr;
  };
  std::vector<Layer> layers_;
  std::shared_ptr<Conv3> last_;
};

// VGG19 up to its last convolution (conv5_4), before that one's ReLU. Takes
// images normalised as ImageNet's; one channel is repeated. Frozen: gradients
// go through it, not to it. Its weights mean nothing until they are loaded.
class Vgg19Features : public torch::nn::Module {
 public:
  Vgg19Features();
  at::Tensor forward(const at::Tensor& images);

 private:
  struct Layer {
    std::shared_ptr<Conv3> conv;
    bool pooled;  // before it
  };
  std::vector<Layer> layers_;
};

}  // namespace lockstep::models
