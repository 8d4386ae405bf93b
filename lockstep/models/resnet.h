#pragma once

// ResNet 18, 34, 50, 101 and 152 without the last layer (backbone.h).

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "lockstep/models/backbone.h"

namespace lockstep::models {

struct ResnetShape {
  bool bottleneck = false;  // blocks of 1x1, 3x3, 1x1 instead of two 3x3
  std::vector<int64_t> depths;
};

class ResnetBlock : public torch::nn::Module {
 public:
  ResnetBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck);
  at::Tensor forward(const at::Tensor& x, int64_t domains);

 private:
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  torch::nn::Conv2d shortcut_{nullptr};  // null: the input as it is
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

class Resnet : public Backbone {
 public:
  Resnet(const ResnetShape& shape, int64_t channels);
  at::Tensor forward(const at::Tensor& images, int64_t domains) override;
  int64_t features() const override { return features_; }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<ResnetBlock>> blocks_;
  int64_t features_ = 0;
};

}  // namespace lockstep::models
