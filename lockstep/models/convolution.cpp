#include "lockstep/models/convolution.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "lockstep/kernels/windows.h"
#include "lockstep/models/conv_act.h"
#include "lockstep/models/windows.h"

namespace lockstep::models {
namespace {

constexpr int64_t kKernel = 4;
constexpr int64_t kStride = 2;
constexpr int64_t kPadding = 1;
constexpr int64_t kLargestMatrixMap = 4;

// PyTorch's default for both kinds of convolution.
at::Tensor make_weight(int64_t first, int64_t second) {
  auto weight = at::empty({first, second, kKernel, kKernel});
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.));
  return weight;
}

// [a, b, 4, 4] seen as [a, 16 * b] in the order of channels_last; a view when
// the weight lies so.
at::Tensor as_matrix(const at::Tensor& map) {
  return map.permute({0, 2, 3, 1}).reshape({map.size(0), -1});
}

// The gradient of the weight that maps `large` [n, b, 2h, 2w] to `small`
// [n, a, h, w] (or back): [a, b, 4, 4] in channels_last, as one product over
// the 4x4 windows of `large`.
at::Tensor weight_gradient(const at::Tensor& small, const at::Tensor& large) {
  const int64_t n = small.size(0);
  const int64_t height = small.size(2);
  const int64_t width = small.size(3);
  const int64_t channels = large.size(1);
  const auto padded =
      at::constant_pad_nd(large.permute({0, 2, 3, 1}), {0, 0, 1, 1, 1, 1})
          .contiguous();
  const int64_t row = padded.stride(1);
  const int64_t column = padded.stride(2);
  const auto windows =
      padded
          .as_strided(
              {n, height, width, kKernel, kKernel, channels},
              {padded.stride(0),
               kStride * row,
               kStride * column,
               row,
               column,
               1})
          .reshape({n * height * width, kKernel * kKernel * channels});
  const auto rows =
      small.permute({0, 2, 3, 1}).reshape({n * height * width, small.size(1)});
  return at::mm(rows.t(), windows)
      .view({small.size(1), kKernel, kKernel, channels})
      .permute({0, 3, 1, 2});
}

bool by_matrix(const at::Tensor& small) {
  return small.is_cpu() && small.size(2) <= kLargestMatrixMap &&
         small.size(3) <= kLargestMatrixMap;
}

// Images on a GPU in bf16: too few channels for cuDNN.
bool by_windows(const at::Tensor& x, int64_t windows, int64_t channels) {
  return x.is_cuda() && in_bf16(x) && kernels::windows_fit(windows, channels);
}

// The named forms, not at::convolution: autocast knows only these.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  return transposed
             ? at::conv_transpose2d(
                   x, w, {}, {kStride, kStride}, {kPadding, kPadding})
             : at::conv2d(x, w, {}, {kStride, kStride}, {kPadding, kPadding});
}

// Strided convolution (or its transpose) whose weight gradient is a product.
class MatrixGradient : public torch::autograd::Function<MatrixGradient> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      bool transposed) {
    context->save_for_backward({x, weight});
    context->saved_data["transposed"] = transposed;
    context->saved_data["x"] = x.requires_grad();
    context->saved_data["weight"] = weight.requires_grad();
    return convolve(x, weight, transposed);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool transposed = context->saved_data["transposed"].toBool();
    const auto gradient =
        gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    at::Tensor for_x;
    at::Tensor for_weight;
    if (context->saved_data["x"].toBool()) {
      // The gradient of a convolution is the transposed one, and back.
      for_x = convolve(gradient, saved[1], !transposed);
    }
    if (context->saved_data["weight"].toBool()) {
      for_weight = transposed ? weight_gradient(saved[0], gradient)
                              : weight_gradient(gradient, saved[0]);
    }
    return {for_x, for_weight, {}};
  }
};

}  // namespace

Halve::Halve(int64_t in, int64_t out)
    : weight_(register_parameter("weight", make_weight(out, in))) {}

at::Tensor Halve::forward(const at::Tensor& x) {
  const bool even = x.size(2) % 2 == 0 && x.size(3) % 2 == 0;
  const int64_t windows = x.size(0) * (x.size(2) / 2) * (x.size(3) / 2);
  if (even && by_windows(x, windows, x.size(1))) {
    return at::mm(unfold_windows(as_autocast(x)), as_matrix(weight_).t())
        .view({x.size(0), x.size(2) / 2, x.size(3) / 2, weight_.size(0)})
        .permute({0, 3, 1, 2});
  }
  if (even && x.is_cpu() && x.size(2) <= 2 * kLargestMatrixMap) {
    return MatrixGradient::apply(as_autocast(x), as_autocast(weight_), false);
  }
  return convolve(x, weight_, false);
}

Double::Double(int64_t in, int64_t out)
    : weight_(register_parameter("weight", make_weight(in, out))) {}

at::Tensor Double::forward(const at::Tensor& x) {
  if (by_matrix(x)) {
    return MatrixGradient::apply(as_autocast(x), as_autocast(weight_), true);
  }
  const int64_t windows = x.size(0) * x.size(2) * x.size(3);
  if (by_windows(x, windows, weight_.size(1))) {
    const auto rows = x.permute({0, 2, 3, 1}).reshape({-1, x.size(1)});
    return fold_windows(
        at::mm(rows, as_matrix(weight_)),
        x.size(0),
        2 * x.size(2),
        2 * x.size(3));
  }
  return convolve(x, weight_, true);
}

Contract::Contract(int64_t in, int64_t out)
    : weight_(register_parameter("weight", make_weight(out, in))) {}

at::Tensor Contract::forward(const at::Tensor& x) {
  return at::mm(as_matrix(x), as_matrix(weight_).t())
      .view({x.size(0), weight_.size(0), 1, 1});
}

Expand::Expand(int64_t in, int64_t out)
    : weight_(register_parameter("weight", make_weight(in, out))) {}

at::Tensor Expand::forward(const at::Tensor& x) {
  return at::mm(x.reshape({x.size(0), -1}), as_matrix(weight_))
      .view({x.size(0), kKernel, kKernel, weight_.size(1)})
      .permute({0, 3, 1, 2});
}

}  // namespace lockstep::models
