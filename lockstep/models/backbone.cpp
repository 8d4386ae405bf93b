#include "lockstep/models/backbone.h"

#include <fmt/format.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <stdexcept>

#include "lockstep/base/nearest.h"
#include "lockstep/models/max_pool.h"
#include "lockstep/models/resnet.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

const std::map<std::string, ResnetShape>& resnets() {
  static const std::map<std::string, ResnetShape> shapes = {
      {"resnet18", {false, {2, 2, 2, 2}}},
      {"resnet34", {false, {3, 4, 6, 3}}},
      {"resnet50", {true, {3, 4, 6, 3}}},
      {"resnet101", {true, {3, 4, 23, 3}}},
      {"resnet152", {true, {3, 8, 36, 3}}},
  };
  return shapes;
}

// Up to the layer before the last, as torchvision's alexnet without
// classifier.6.
class AlexNet : public Backbone {
 public:
  explicit AlexNet(const BackboneOptions& options) : dropout_(options.dropout) {
    auto features = register_module("features", std::make_shared<nn::Module>());
    const auto conv = [&](const char* name,
                          int64_t in,
                          int64_t out,
                          int64_t kernel,
                          int64_t stride,
                          int64_t padding) {
      convs_.push_back(features->register_module(
          name,
          nn::Conv2d(
              nn::Conv2dOptions(in, out, kernel)
                  .stride(stride)
                  .padding(padding))));
    };
    conv("0", options.channels, 64, 11, 4, 2);
    conv("3", 64, 192, 5, 1, 2);
    conv("6", 192, 384, 3, 1, 1);
    conv("8", 384, 256, 3, 1, 1);
    conv("10", 256, 256, 3, 1, 1);
    auto classifier =
        register_module("classifier", std::make_shared<nn::Module>());
    fc1_ = classifier->register_module("1", nn::Linear(256 * 6 * 6, 4096));
    fc2_ = classifier->register_module("4", nn::Linear(4096, 4096));
  }

  at::Tensor forward(const at::Tensor& images, int64_t /*domains*/) override {
    auto x = images;
    for (size_t i = 0; i < convs_.size(); ++i) {
      x = at::relu(convs_[i]->forward(x));
      if (i == 0 || i == 1 || i + 1 == convs_.size()) {
        x = max_pool(x, {.window = 3});
      }
    }
    // Contiguous first: the weights expect channel after channel.
    x = at::adaptive_avg_pool2d(x, {6, 6}).contiguous().flatten(1);
    x = at::dropout(x, dropout_, is_training());
    x = at::relu(fc1_->forward(x));
    x = at::dropout(x, dropout_, is_training());
    return at::relu(fc2_->forward(x));
  }
  int64_t features() const override { return 4096; }

 private:
  double dropout_;
  std::vector<nn::Conv2d> convs_;
  nn::Linear fc1_{nullptr};
  nn::Linear fc2_{nullptr};
};

class Dann : public Backbone {
 public:
  explicit Dann(const BackboneOptions& options) : dropout_(options.dropout) {
    const int64_t pixels =
        options.channels * options.image_size * options.image_size;
    fc_ = register_module("fc", nn::Linear(pixels, features()));
  }
  at::Tensor forward(const at::Tensor& images, int64_t /*domains*/) override {
    const auto x = fc_->forward(images.contiguous().flatten(1));
    return at::relu(at::dropout(x, dropout_, is_training()));
  }
  int64_t features() const override { return 256; }

 private:
  double dropout_;
  nn::Linear fc_{nullptr};
};

}  // namespace

std::vector<std::string> backbone_names() {
  return {
      "resnet18",
      "resnet34",
      "resnet50",
      "resnet101",
      "resnet152",
      "alexnet",
      "dann"};
}

void check_options(const BackboneOptions& options) {
  const auto names = backbone_names();
  if (std::find(names.begin(), names.end(), options.name) == names.end()) {
    throw std::invalid_argument(
        fmt::format(
            "unknown backbone '{}': {}",
            options.name,
            suggest(options.name, names)));
  }
  // Its pooling three times needs something to pool.
  const int64_t smallest = options.name == "alexnet" ? 63 : 4;
  if (options.image_size < smallest) {
    throw std::invalid_argument(
        fmt::format(
            "{} cannot take images of {} pixels a side; accepted: {} and more",
            options.name,
            options.image_size,
            smallest));
  }
}

std::shared_ptr<Backbone> make_backbone(const BackboneOptions& options) {
  check_options(options);
  if (options.name == "alexnet") {
    return std::make_shared<AlexNet>(options);
  }
  if (options.name == "dann") {
    return std::make_shared<Dann>(options);
  }
  return std::make_shared<Resnet>(resnets().at(options.name), options.channels);
}

}  // namespace lockstep::models
