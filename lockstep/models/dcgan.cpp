#include "lockstep/models/dcgan.h"

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include <stdexcept>

#include "lockstep/models/convolution.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

// Doublings between the 4x4 seed and the image.
int64_t num_doublings(int64_t image_size) {
  int64_t doublings = 0;
  for (int64_t size = 4; size < image_size; size *= 2) {
    ++doublings;
  }
  return doublings;
}

}  // namespace

void check_options(const DcganOptions& options) {
  const int64_t size = options.image_size;
  if (size < 8 || size > 512 || (size & (size - 1)) != 0) {
    throw std::invalid_argument(
        fmt::format(
            "dcgan: image_size {} does not fit; accepted: 8, 16, 32, 64, 128, "
            "256, 512",
            size));
  }
}

DcganGenerator::DcganGenerator(const DcganOptions& options) {
  check_options(options);
  const int64_t doublings = num_doublings(options.image_size);
  int64_t width = options.ngf << (doublings - 1);
  main_->push_back(Expand(options.nz, width));
  main_->push_back(nn::BatchNorm2d(width));
  main_->push_back(nn::ReLU(nn::ReLUOptions(true)));
  for (int64_t i = 1; i < doublings; ++i, width /= 2) {
    main_->push_back(Double(width, width / 2));
    main_->push_back(nn::BatchNorm2d(width / 2));
    main_->push_back(nn::ReLU(nn::ReLUOptions(true)));
  }
  main_->push_back(Double(width, options.channels));
  main_->push_back(nn::Tanh());
  register_module("main", main_);
}

at::Tensor DcganGenerator::forward(const at::Tensor& noise) {
  return main_->forward(noise);
}

DcganDiscriminator::DcganDiscriminator(const DcganOptions& options) {
  check_options(options);
  const int64_t halvings = num_doublings(options.image_size);
  const auto leaky = nn::LeakyReLUOptions().negative_slope(.2).inplace(true);
  int64_t width = options.ndf;
  main_->push_back(Halve(options.channels, width));
  main_->push_back(nn::LeakyReLU(leaky));
  for (int64_t i = 1; i < halvings; ++i, width *= 2) {
    main_->push_back(Halve(width, width * 2));
    main_->push_back(nn::BatchNorm2d(width * 2));
    main_->push_back(nn::LeakyReLU(leaky));
  }
  main_->push_back(Contract(width, 1));
  register_module("main", main_);
}

at::Tensor DcganDiscriminator::forward(const at::Tensor& images) {
  return main_->forward(images).flatten();
}

}  // namespace lockstep::models
