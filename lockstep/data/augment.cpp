#include "lockstep/data/augment.h"

#include <ATen/Context.h>
#include <torch/types.h>

#include <cmath>
#include <random>

#include "lockstep/data/random.h"

namespace lockstep::data {
namespace {

enum Stream : uint64_t { kFlip, kDown, kAcross, kOrder, kShare };

at::Tensor draws(
    uint64_t key,
    Stream stream,
    int64_t count,
    uint64_t bound,
    c10::Device device) {
  auto values = at::empty({count}, at::kLong);
  auto* data = values.data_ptr<int64_t>();
  const uint64_t own = stream_key(key, stream);
  for (int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<int64_t>(
        below(stream_value(own, static_cast<uint64_t>(i)), bound));
  }
  return values.to(device, /*non_blocking=*/true);
}

at::Tensor order(uint64_t key, int64_t count, c10::Device device) {
  auto values = at::arange(count, at::kLong);
  auto* data = values.data_ptr<int64_t>();
  const uint64_t own = stream_key(key, kOrder);
  for (int64_t i = count - 1; i > 0; --i) {
    const auto other = static_cast<int64_t>(below(
        stream_value(own, static_cast<uint64_t>(i)),
        static_cast<uint64_t>(i) + 1));
    std::swap(data[i], data[other]);
  }
  return values.to(device, /*non_blocking=*/true);
}

// (0, 1), never an end.
double uniform(uint64_t key, uint64_t index) {
  return (static_cast<double>(stream_value(key, index) >> 11) + .5) * 0x1p-53;
}

// The logarithm of Gamma(alpha), alpha < 1 too (Marsaglia and Tsang, with their
// boost): ours, since the library's draws differ between machines; as a
// logarithm, since draws of a small alpha are smaller than any double.
double log_gamma(uint64_t key, double alpha) {
  const double boost =
      alpha < 1 ? std::log(uniform(key, 0)) / std::max(alpha, 1e-300) : 0;
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1. / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (uint64_t i = 1;; i += 3) {
    const double radius = std::sqrt(-2 * std::log(uniform(key, i)));
    const double x = radius * std::cos(2 * M_PI * uniform(key, i + 1));
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform(key, i + 2)) <
                     x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v) + boost;
    }
  }
}

double beta(uint64_t key, double alpha) {
  const double a = log_gamma(stream_key(key, kShare, 0), alpha);
  const double b = log_gamma(stream_key(key, kShare, 1), alpha);
  return 1 / (1 + std::exp(b - a));
}

}  // namespace

at::Tensor normalised(const at::Tensor& pixels, const AugmentOptions& options) {
  const int64_t channels = pixels.size(1);
  auto images = pixels.to(at::kFloat);
  if (pixels.size(2) != options.image_size ||
      pixels.size(3) != options.image_size) {
    images = at::_upsample_bilinear2d_aa(
        images,
        {options.image_size, options.image_size},
        /*align_corners=*/false,
        std::nullopt,
        std::nullopt);
  }
  std::vector<float> scale;
  std::vector<float> shift;
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    scale.push_back(1 / (255 * options.stddev[c]));
    shift.push_back(-options.mean[c] / options.stddev[c]);
  }
  const auto by_channel = [&](const std::vector<float>& values) {
    return at::tensor(values).to(pixels.device()).view({1, channels, 1, 1});
  };
  return at::addcmul(by_channel(shift), images, by_channel(scale))
      .contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor flipped(const at::Tensor& images, const at::Tensor& mask) {
  return at::where(
             mask.to(at::kBool).view({-1, 1, 1, 1}), images.flip(3), images)
      .contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor cropped(
    const at::Tensor& images,
    int64_t padding,
    const at::Tensor& down,
    const at::Tensor& across,
    double fill) {
  const int64_t count = images.size(0);
  const auto whole = at::TensorOptions(at::kLong).device(images.device());
  const auto padded =
      at::constant_pad_nd(images, {padding, padding, padding, padding}, fill)
          .permute({0, 2, 3, 1});
  const auto which = at::arange(count, whole).view({-1, 1, 1});
  const auto rows =
      (down.view({-1, 1}) + at::arange(images.size(2), whole)).unsqueeze(2);
  const auto columns =
      (across.view({-1, 1}) + at::arange(images.size(3), whole)).unsqueeze(1);
  return padded.index({which, rows, columns}).permute({0, 3, 1, 2});
}

Draws draw(int64_t count, const AugmentOptions& options, uint64_t key) {
  Draws result;
  const auto pinned = [](const at::Tensor& tensor) {
    return at::hasCUDA() ? tensor.pin_memory() : tensor;
  };
  if (options.flip || options.padding > 0) {
    const auto span = static_cast<uint64_t>(2 * options.padding + 1);
    const auto column = [&](bool wanted, Stream stream, uint64_t bound) {
      return wanted ? draws(key, stream, count, bound, at::kCPU)
                    : at::zeros({count}, at::kLong);
    };
    const bool crop = options.padding > 0;
    result.moves = pinned(
        at::stack(
            {column(options.flip, kFlip, 2),
             column(crop, kDown, span),
             column(crop, kAcross, span)},
            1)
            .to(at::kInt));
  }
  if (options.mixup > 0) {
    result.partners = pinned(order(key, count, at::kCPU));
    result.share = beta(key, options.mixup);
  }
  return result;
}

Augmented augmented(
    const at::Tensor& images,
    const at::Tensor& labels,
    const AugmentOptions& options,
    uint64_t key) {
  const int64_t count = images.size(0);
  const auto device = images.device();
  const bool bytes = images.scalar_type() == at::kByte;
  Augmented result;
  result.images = images;
  result.labels = labels;
  if (options.padding > 0) {
    const auto span = static_cast<uint64_t>(2 * options.padding + 1);
    // Black, also where black is no longer 0.
    const double fill =
        bytes ? 0 : -static_cast<double>(options.mean[0] / options.stddev[0]);
    result.images = cropped(
        result.images,
        options.padding,
        draws(key, kDown, count, span, device),
        draws(key, kAcross, count, span, device),
        fill);
  }
  if (options.flip) {
    result.images = flipped(result.images, draws(key, kFlip, count, 2, device));
  }
  if (bytes) {
    result.images = normalised(result.images, options);
  }
  if (options.mixup > 0) {
    const auto partner = order(key, count, device);
    result.share = beta(key, options.mixup);
    result.others = labels.index_select(0, partner);
    result.images = at::lerp(
        result.images.index_select(0, partner), result.images, result.share);
  }
  return result;
}

}  // namespace lockstep::data
