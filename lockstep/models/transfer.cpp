#include "lockstep/models/transfer.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

namespace lockstep::models {
namespace {

namespace nn = torch::nn;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// The forward centres by the mean of everybody's samples before it multiplies:
// sums of squares minus a large mean would lose digits. The deviations then add
// up to nothing over all samples, so that the mean needs no gradient of its
// own.
class Coral : public torch::autograd::Function<Coral> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& source,
      const at::Tensor& target,
      const SumOverRanks& sum) {
    const int64_t d = source.size(1);
    // Each domain's sum and count, in one message.
    auto sums = at::empty({2, d + 1}, source.options());
    const auto begin = [&](int64_t domain, const at::Tensor& features) {
      sums[domain].narrow(0, 0, d).copy_(features.sum(0));
      sums[domain][d].fill_(static_cast<double>(features.size(0)));
    };
    begin(0, source);
    begin(1, target);
    if (sum) {
      sum(sums);
    }
    const auto counts = sums.narrow(1, d, 1);
    const auto means = sums.narrow(1, 0, d) / counts;
    const auto from_source = source - means[0];
    const auto from_target = target - means[1];
    // Divided first: one message carries the difference of both.
    const auto less = counts - 1;
    auto apart = at::mm(from_source.t() / less[0], from_source) -
                 at::mm(from_target.t() / less[1], from_target);
    if (sum) {
      sum(apart);
    }
    context->save_for_backward({from_source, from_target, apart, less});
    return (apart * apart).sum() / static_cast<double>(4 * d * d);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& apart = saved[2];
    const auto scale = gradients[0] /
                       static_cast<double>(apart.size(0) * apart.size(0)) /
                       saved[3];
    return {
        at::mm(saved[0], apart) * scale[0],
        at::mm(saved[1], apart) * -scale[1],
        {}};
  }
};

}  // namespace

TransferNet::TransferNet(const TransferOptions& options)
    : backbone_(register_module("backbone", make_backbone(options.backbone))) {
  int64_t width = backbone_->features();
  if (options.bottleneck > 0) {
    bottleneck_ =
        register_module("bottleneck", nn::Linear(width, options.bottleneck));
    width = options.bottleneck;
  }
  classifier_ =
      register_module("classifier", nn::Linear(width, options.classes));
}

at::Tensor TransferNet::features(const at::Tensor& images, int64_t domains) {
  const auto x = backbone_->forward(images, domains);
  return bottleneck_ ? at::relu(bottleneck_->forward(x)) : x;
}

at::Tensor TransferNet::classify(const at::Tensor& features) {
  return classifier_->forward(features);
}

at::Tensor coral(
    const at::Tensor& source,
    const at::Tensor& target,
    const SumOverRanks& sum) {
  return Coral::apply(wide(source), wide(target), sum);
}

at::Tensor mmd(const at::Tensor& source, const at::Tensor& target) {
  constexpr int kKernels = 5;
  constexpr double kMultiplier = 2;
  const int64_t n = source.size(0);
  const auto all = at::cat({wide(source), wide(target)});
  const int64_t count = all.size(0);
  const auto square = (all * all).sum(1, /*keepdim=*/true);
  const auto distance =
      (square + square.t() - 2 * at::mm(all, all.t())).clamp_min(0);
  // The width is what the data give: no gradient flows through it.
  auto width = distance.detach().sum() /
               static_cast<double>(count * count - count) /
               std::pow(kMultiplier, kKernels / 2);
  width = width.clamp_min(1e-12);
  at::Tensor kernel = at::exp(-distance / width);
  for (int i = 1; i < kKernels; ++i) {
    kernel = kernel + at::exp(-distance / (width * std::pow(kMultiplier, i)));
  }
  const auto among = [&](int64_t row, int64_t rows, int64_t at, int64_t wide) {
    return kernel.narrow(0, row, rows).narrow(1, at, wide).mean();
  };
  const int64_t m = count - n;
  return among(0, n, 0, n) + among(n, m, n, m) - 2 * among(0, n, n, m);
}

}  // namespace lockstep::models
