#pragma once

// Networks that turn images into features, without the head that classifies
// them: ResNet (He et al., arXiv 1512.03385, with the stride on the 3x3 as
// torchvision has it), AlexNet (Krizhevsky, arXiv 1404.5997) and `dann`, one
// linear layer over the pixels. Parameters and buffers have torchvision's
// names. Plain modules: no parallelism, any device, any memory format.
//
// A batch may hold several domains, equally many images each, one after the
// other: everything is computed at once, but BatchNorm normalises each domain
// by its own statistics and counts them one after the other, as if each had
// been a batch of its own.

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::models {

struct BackboneOptions {
  std::string name = "resnet50";
  int64_t image_size = 224;
  int64_t channels = 3;
  double dropout = .5;  // of alexnet and dann
};

class Backbone : public torch::nn::Module {
 public:
  // [n, channels, size, size] -> [n, features()].
  virtual at::Tensor forward(const at::Tensor& images, int64_t domains = 1) = 0;
  virtual int64_t features() const = 0;
};

std::vector<std::string> backbone_names();

// Throws std::invalid_argument with the accepted names or sizes.
void check_options(const BackboneOptions& options);
std::shared_ptr<Backbone> make_backbone(const BackboneOptions& options);

}  // namespace lockstep::models
