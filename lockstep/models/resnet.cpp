#include "lockstep/models/resnet.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include "lockstep/models/max_pool.h"
#include "lockstep/models/norm.h"
#include "lockstep/models/small_conv.h"
#include "lockstep/models/winograd.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

constexpr int64_t kExpansion = 4;  // of a bottleneck's last convolution

nn::Conv2d
make_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  nn::Conv2d conv(
      nn::Conv2dOptions(in, out, kernel)
          .stride(stride)
          .padding(kernel / 2)
          .bias(false));
  nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

at::Tensor convolve(nn::Conv2d& conv, const at::Tensor& x) {
  const int64_t stride = conv->options.stride()->at(0);
  if (stride == 1 && winograd_pays() &&
      !takes_products(x, conv->weight, stride) &&
      takes_winograd(x, conv->weight)) {
    return winograd_conv(x, conv->weight);
  }
  return small_conv(x, conv->weight, stride);
}

// A module without a forward of its own, for the dots in torchvision's names.
std::shared_ptr<nn::Module> make_folder() {
  return std::make_shared<nn::Module>();
}

}  // namespace

ResnetBlock::ResnetBlock(
    int64_t in,
    int64_t width,
    int64_t stride,
    bool bottleneck) {
  const int64_t out = bottleneck ? width * kExpansion : width;
  const auto add = [this](int64_t from, int64_t to, int64_t k, int64_t s) {
    const auto number = std::to_string(convs_.size() + 1);
    convs_.push_back(
        register_module("conv" + number, make_conv(from, to, k, s)));
    norms_.push_back(register_module("bn" + number, nn::BatchNorm2d(to)));
  };
  if (bottleneck) {
    add(in, width, 1, 1);
    add(width, width, 3, stride);
    add(width, out, 1, 1);
  } else {
    add(in, width, 3, stride);
    add(width, width, 3, 1);
  }
  if (stride != 1 || in != out) {
    auto folder = register_module("downsample", make_folder());
    shortcut_ = folder->register_module("0", make_conv(in, out, 1, stride));
    shortcut_norm_ = folder->register_module("1", nn::BatchNorm2d(out));
  }
}

at::Tensor ResnetBlock::forward(const at::Tensor& x, int64_t domains) {
  auto y = x;
  for (size_t i = 0; i + 1 < convs_.size(); ++i) {
    y = norm_relu(convolve(convs_[i], y), norms_[i], domains);
  }
  y = convolve(convs_.back(), y);
  const auto past =
      shortcut_ ? norm(convolve(shortcut_, x), shortcut_norm_, domains) : x;
  return norm_add_relu(y, past, norms_.back(), domains);
}

Resnet::Resnet(const ResnetShape& shape, int64_t channels) {
  constexpr int64_t kFirst = 64;
  conv1_ = register_module("conv1", make_conv(channels, kFirst, 7, 2));
  bn1_ = register_module("bn1", nn::BatchNorm2d(kFirst));
  int64_t in = kFirst;
  int64_t width = kFirst;
  for (size_t stage = 0; stage < shape.depths.size(); ++stage, width *= 2) {
    auto layer =
        register_module("layer" + std::to_string(stage + 1), make_folder());
    for (int64_t i = 0; i < shape.depths[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      auto block =
          std::make_shared<ResnetBlock>(in, width, stride, shape.bottleneck);
      blocks_.push_back(layer->register_module(std::to_string(i), block));
      in = shape.bottleneck ? width * kExpansion : width;
    }
  }
  features_ = in;
}

at::Tensor Resnet::forward(const at::Tensor& images, int64_t domains) {
  auto x = norm_relu(convolve(conv1_, images), bn1_, domains);
  x = max_pool(x, {.window = 3, .padding = 1});
  for (const auto& block : blocks_) {
    x = block->forward(x, domains);
  }
  return at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
}

}  // namespace lockstep::models
