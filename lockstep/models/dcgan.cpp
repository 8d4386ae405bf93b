#include "lockstep/models/dcgan.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/models/norm.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

constexpr double kSlope = .2;  // of the discriminator's ReLU below zero

// Children main.0, main.1 and so on of a module, as a Sequential would have
// named them.
class Numbered {
 public:
  explicit Numbered(nn::Module& parent)
      : main_(parent.register_module("main", std::make_shared<nn::Module>())) {}
  template <class Child>
  Child add(Child child) {
    return main_->register_module(std::to_string(count_++), child);
  }
  void skip() { ++count_; }

 private:
  std::shared_ptr<nn::Module> main_;
  int count_ = 0;
};

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
  Numbered main(*this);
  const int64_t doublings = num_doublings(options.image_size);
  int64_t width = options.ngf << (doublings - 1);
  first_ = main.add(std::make_shared<Expand>(options.nz, width));
  for (int64_t i = 0; i < doublings; ++i, width /= 2) {
    norms_.push_back(main.add(nn::BatchNorm2d(width)));
    main.skip();  // ReLU
    const int64_t next = i + 1 < doublings ? width / 2 : options.channels;
    doubles_.push_back(main.add(std::make_shared<Double>(width, next)));
  }
}

at::Tensor DcganGenerator::forward(const at::Tensor& noise) {
  auto x = first_->forward(noise);
  for (size_t i = 0; i < doubles_.size(); ++i) {
    x = doubles_[i]->forward(norm_relu(x, norms_[i]));
  }
  return x.tanh();
}

DcganDiscriminator::DcganDiscriminator(const DcganOptions& options) {
  check_options(options);
  Numbered main(*this);
  const int64_t halvings = num_doublings(options.image_size);
  int64_t width = options.ndf;
  halves_.push_back(main.add(std::make_shared<Halve>(options.channels, width)));
  main.skip();  // LeakyReLU
  for (int64_t i = 1; i < halvings; ++i, width *= 2) {
    halves_.push_back(main.add(std::make_shared<Halve>(width, width * 2)));
    norms_.push_back(main.add(nn::BatchNorm2d(width * 2)));
    main.skip();
  }
  last_ = main.add(std::make_shared<Contract>(width, 1));
}

at::Tensor DcganDiscriminator::forward(
    const at::Tensor& images,
    int64_t domains) {
  auto x = halves_.front()->forward(images);
  // In place, but not on a view (a product's): autograd would copy it twice.
  x = x.is_view() ? at::leaky_relu(x, kSlope) : at::leaky_relu_(x, kSlope);
  for (size_t i = 0; i < norms_.size(); ++i) {
    x = norm_leaky_relu(halves_[i + 1]->forward(x), norms_[i], kSlope, domains);
  }
  return last_->forward(x).flatten();
}

}  // namespace lockstep::models
