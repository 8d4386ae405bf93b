#include "lockstep/models/esrgan.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/models/max_pool.h"
#include "lockstep/models/norm.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

// A module that only holds others under the names that checkpoints have.
std::shared_ptr<nn::Module> make_holder() {
  return std::make_shared<nn::Module>();
}

// at::pixel_shuffle(x, 2), from channels_last to channels_last by one copy.
at::Tensor shuffle(const at::Tensor& x) {
  const int64_t n = x.size(0);
  const int64_t channels = x.size(1) / 4;
  const int64_t height = x.size(2);
  const int64_t width = x.size(3);
  return x.permute({0, 2, 3, 1})
      .reshape({n, height, width, channels, 2, 2})
      .permute({0, 1, 4, 2, 5, 3})
      .reshape({n, 2 * height, 2 * width, channels})
      .permute({0, 3, 1, 2});
}

constexpr double kDiscriminatorSlope = .2;
constexpr int kDensePerBlock = 3;

}  // namespace

EsrganGenerator::EsrganGenerator(const EsrganOptions& options) {
  const int64_t width = options.filters;
  conv1_ = register_module(
      "conv1", std::make_shared<Conv3>(options.channels, width));
  auto blocks = register_module("res_blocks", make_holder());
  for (int64_t i = 0; i < options.residual_blocks; ++i) {
    auto holder = blocks->register_module(std::to_string(i), make_holder());
    auto inner = holder->register_module("dense_blocks", make_holder());
    auto& block = blocks_.emplace_back();
    for (int j = 0; j < kDensePerBlock; ++j) {
      block.push_back(inner->register_module(
          std::to_string(j), std::make_shared<DenseBlock>(width)));
    }
  }
  conv2_ = register_module("conv2", std::make_shared<Conv3>(width, width));
  auto upsampling = register_module("upsampling", make_holder());
  for (const char* name : {"0", "3"}) {
    enlarge_.push_back(upsampling->register_module(
        name, std::make_shared<Conv3>(width, 4 * width, kGeneratorSlope)));
  }
  auto tail = register_module("conv3", make_holder());
  smooth_ = tail->register_module(
      "0", std::make_shared<Conv3>(width, width, kGeneratorSlope));
  last_ = tail->register_module(
      "2", std::make_shared<Conv3>(width, options.channels));
}

at::Tensor EsrganGenerator::forward(const at::Tensor& low) {
  const auto first = conv1_->forward(low);
  auto x = first;
  for (const auto& block : blocks_) {
    auto inner = x;
    for (const auto& dense : block) {
      inner = dense->forward(inner);
    }
    x = at::add(x, inner, kResidualScale);
  }
  x = first + conv2_->forward(x);
  for (const auto& conv : enlarge_) {
    x = shuffle(conv->forward(x));
  }
  return last_->forward(smooth_->forward(x));
}

int64_t EsrganGenerator::reach() const {
  // One a convolution at the input's size; behind it halves and quarters.
  const auto trunk =
      static_cast<int64_t>(blocks_.size() * kDensePerBlock * kDenseConvs);
  return trunk + 2 /* conv1, conv2 */ + 3 /* 1 + 1/2 + 1/4 + 1/4 */;
}

EsrganDiscriminator::EsrganDiscriminator(int64_t channels) {
  auto model = register_module("model", make_holder());
  int index = 0;
  const auto add = [&](int64_t in, int64_t out, double slope, int64_t stride) {
    return model->register_module(
        std::to_string(index++),
        std::make_shared<Conv3>(in, out, slope, stride));
  };
  const auto normed = [&](int64_t in, int64_t out, int64_t stride) {
    const auto conv = add(in, out, kNoActivation, stride);
    const auto norm =
        model->register_module(std::to_string(index++), nn::BatchNorm2d(out));
    ++index;  // the activation
    layers_.push_back({conv, norm});
  };
  int64_t width = channels;
  for (const int64_t next : {64, 128, 256, 512}) {
    if (width == channels) {
      layers_.push_back({add(width, next, kDiscriminatorSlope, 1)});
      ++index;
    } else {
      normed(width, next, 1);
    }
    normed(next, next, 2);
    width = next;
  }
  last_ = add(width, 1, kNoActivation, 1);
}

at::Tensor EsrganDiscriminator::forward(const at::Tensor& images) {
  auto x = images;
  for (auto& layer : layers_) {
    x = layer.conv->forward(x);
    if (layer.norm) {
      x = norm_leaky_relu(x, layer.norm, kDiscriminatorSlope);
    }
  }
  return last_->forward(x);
}

Vgg19Features::Vgg19Features() {
  auto features = register_module("features", make_holder());
  int64_t width = 3;
  int index = 0;
  constexpr int kLast = 34;  // conv5_4
  const std::array<std::pair<int64_t, int>, 5> stages = {
      {{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}}};
  for (const auto& [next, count] : stages) {
    for (int i = 0; i < count; ++i, index += 2) {
      layers_.push_back(
          {features->register_module(
               std::to_string(index),
               std::make_shared<Conv3>(
                   width, next, index == kLast ? kNoActivation : 0)),
           i == 0 && index > 0});
      width = next;
    }
    ++index;  // the pooling
  }
  for (auto& parameter : parameters()) {
    parameter.requires_grad_(false);
  }
}

at::Tensor Vgg19Features::forward(const at::Tensor& images) {
  auto x = images.size(1) == 1 ? images.expand({-1, 3, -1, -1}) : images;
  for (const auto& layer : layers_) {
    if (layer.pooled) {
      x = max_pool(x, {});
    }
    x = layer.conv->forward(x);
  }
  return x;
}

}  // namespace lockstep::models
