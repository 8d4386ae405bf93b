#include "lockstep/train/image_quality.h"

#include <torch/types.h>

#include <algorithm>

namespace lockstep::train {
namespace {

constexpr double kMostDecibels = 100;
constexpr int64_t kWindow = 11;
constexpr double kSigma = 1.5;

at::Tensor gaussian(int64_t length, const at::Tensor& like) {
  const auto x =
      at::arange(length, like.options()) - static_cast<double>(length - 1) / 2;
  const auto weights = (-(x * x) / (2 * kSigma * kSigma)).exp();
  return weights / weights.sum();
}

// The weighted mean over each window, rows first.
class Window {
 public:
  explicit Window(const at::Tensor& images)
      : channels_(images.size(1)),
        down_(gaussian(std::min(kWindow, images.size(2)), images)),
        across_(gaussian(std::min(kWindow, images.size(3)), images)) {}
  at::Tensor mean(const at::Tensor& x) const {
    const auto over = [&](const at::Tensor& map, const at::Tensor& weights) {
      return at::conv2d(
          map,
          weights.expand({channels_, 1, weights.size(2), weights.size(3)}),
          at::Tensor(),
          at::IntArrayRef({1, 1}),
          at::IntArrayRef({0, 0}),
          at::IntArrayRef({1, 1}),
          channels_);
    };
    return over(
        over(x, down_.view({1, 1, -1, 1})), across_.view({1, 1, 1, -1}));
  }

 private:
  int64_t channels_;
  at::Tensor down_;
  at::Tensor across_;
};

}  // namespace

at::Tensor psnr(const at::Tensor& images, const at::Tensor& originals) {
  const auto error = (images.to(at::kDouble) - originals.to(at::kDouble))
                         .square()
                         .mean({1, 2, 3});
  return (error.log10() * -10).clamp_max(kMostDecibels);
}

at::Tensor ssim(const at::Tensor& images, const at::Tensor& originals) {
  const auto x = images.to(at::kDouble).contiguous();
  const auto y = originals.to(at::kDouble).contiguous();
  const Window window(x);
  const auto mean_x = window.mean(x);
  const auto mean_y = window.mean(y);
  const auto spread_x = window.mean(x * x) - mean_x.square();
  const auto spread_y = window.mean(y * y) - mean_y.square();
  const auto common = window.mean(x * y) - mean_x * mean_y;
  constexpr double kLuminance = .01 * .01;
  constexpr double kContrast = .03 * .03;
  const auto map = (mean_x * mean_y * 2 + kLuminance) *
                   (common * 2 + kContrast) /
                   ((mean_x.square() + mean_y.square() + kLuminance) *
                    (spread_x + spread_y + kContrast));
  return map.mean({1, 2, 3});
}

}  // namespace lockstep::train
