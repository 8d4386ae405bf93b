#include "lockstep/models/conv_act.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>
#include <optional>

#include "lockstep/kernels/bias_act.h"
#include "lockstep/models/bias_gradients.h"
#include "lockstep/models/launch.h"
#include "lockstep/models/sink.h"
#include "lockstep/models/winograd.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace k = kernels;
constexpr auto kLast = at::MemoryFormat::ChannelsLast;

// The sum, bias and activation in place, over what the convolution made.
void activate(const at::Tensor& y, const at::Tensor& bias, double slope) {
  k::BiasActForward b;
  b.rows = y.numel() / y.size(1);
  b.channels = y.size(1);
  b.type = kernel_type(y);
  b.sources[0] = {y.data_ptr(), y.size(1)};
  b.bias = bias.data_ptr<float>();
  b.slope = static_cast<float>(slope);
  b.out = y.data_ptr();
  launch(y, k::cpu::bias_act_forward, k::cuda::bias_act_forward, b);
}

// The gradient before the activation; the bias's where it is wanted.
at::Tensor deactivate(
    const at::Tensor& gradient,
    const at::Tensor& y,
    double slope,
    const Sink* bias) {
  auto result = at::empty_like(y, y.options(), kLast);
  k::BiasActBackward b;
  b.rows = y.numel() / y.size(1);
  b.channels = y.size(1);
  b.type = kernel_type(y);
  b.gradient = gradient.data_ptr();
  b.output = y.data_ptr();
  b.slope = static_cast<float>(slope);
  b.targets[0] = {result.data_ptr(), y.size(1)};
  std::optional<BiasGradients> sums;
  if (bias != nullptr) {
    sums.emplace(y, 1);
    sums->receive(b, 0);
  }
  launch(y, k::cpu::bias_act_backward, k::cuda::bias_act_backward, b);
  if (sums) {
    sums->add_to({bias});
  }
  return result;
}

class ConvAct : public torch::autograd::Function<ConvAct> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor& bias,
      double slope,
      int64_t stride) {
    at::Tensor y;
    if (kernels_fit(x, weight.size(0))) {
      y = at::conv2d(x, weight, {}, {stride, stride}, {1, 1}).contiguous(kLast);
      activate(y, bias, slope);
    } else {
      y = at::conv2d(
          x, weight, bias.to(x.scalar_type()), {stride, stride}, {1, 1});
      at::leaky_relu_(y, slope);
    }
    context->save_for_backward({x, weight, y, bias});
    context->saved_data["slope"] = slope;
    context->saved_data["stride"] = stride;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const auto saved = context->get_saved_variables();
    const int64_t stride = context->saved_data["stride"].toInt();
    const double slope = context->saved_data["slope"].toDouble();
    const bool wants_bias = context->needs_input_grad(2);
    const bool fused = kernels_fit(saved[0], saved[1].size(0));
    std::optional<Sink> sink;
    at::Tensor gradient;
    if (fused) {
      if (wants_bias) {
        sink.emplace(saved[3]);
      }
      gradient = deactivate(
          given[0].contiguous(kLast), saved[2], slope, sink ? &*sink : nullptr);
    } else {
      gradient = at::leaky_relu_backward(
          given[0].contiguous(saved[2].suggest_memory_format()),
          saved[2],
          slope,
          /*self_is_result=*/true);
    }
    auto [for_x, for_weight, for_bias] = at::convolution_backward(
        gradient,
        saved[0],
        saved[1],
        {{saved[1].size(0)}},
        {stride, stride},
        {1, 1},
        {1, 1},
        /*transposed=*/false,
        {0, 0},
        1,
        {context->needs_input_grad(0),
         context->needs_input_grad(1),
         wants_bias && !fused});
    if (wants_bias) {
      for_bias = fused ? sink->result() : for_bias.to(saved[3].scalar_type());
    }
    return {for_x, for_weight, for_bias, {}, {}};
  }
};

}  // namespace

// Autocast does not reach into a custom function: cast as it would.
at::Tensor as_autocast(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) {
    return tensor;
  }
  return at::autocast::cached_cast(
      at::autocast::get_autocast_dtype(device), tensor, device);
}

bool in_bf16(const at::Tensor& x) {
  const auto device = x.device().type();
  return x.scalar_type() == at::kBFloat16 ||
         (at::autocast::is_autocast_enabled(device) &&
          at::autocast::get_autocast_dtype(device) == at::kBFloat16);
}

bool kernels_fit(const at::Tensor& x, int64_t channels) {
  return x.is_cuda() && in_bf16(x) && channels % 8 == 0 && channels <= 2048 &&
         256 % (channels / 8) == 0;
}

at::Tensor conv_act(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double slope,
    int64_t stride) {
  if (stride == 1 && winograd_pays() && takes_winograd(x, weight)) {
    return winograd_conv(x, weight, bias, slope);
  }
  if (slope == kNoActivation) {
    return at::conv2d(x, weight, bias, {stride, stride}, {1, 1});
  }
  return ConvAct::apply(
      as_autocast(x), as_autocast(weight), bias, slope, stride);
}

Conv3::Conv3(int64_t in, int64_t out, double slope, int64_t stride)
    : weight(register_parameter("weight", at::empty({out, in, 3, 3}))),
      bias(register_parameter("bias", at::empty({out}))),
      slope_(slope),
      stride_(stride) {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.));
  const double bound = 1 / std::sqrt(static_cast<double>(in) * 9);
  torch::nn::init::uniform_(bias, -bound, bound);
}

const at::Tensor& Conv3::ready() {
  if (!ready_.defined() ||
      ready_of_.const_data_ptr() != weight.const_data_ptr() ||
      ready_version_ != weight._version()) {
    ready_ = winograd_weight(weight);
    ready_of_ = weight.detach();
    ready_version_ = weight._version();
  }
  return ready_;
}

at::Tensor Conv3::forward(const at::Tensor& x) {
  if (!weight.requires_grad() && stride_ == 1 && winograd_pays() &&
      takes_winograd(x, weight)) {
    return winograd_conv(x, weight, bias, slope_, ready());
  }
  return conv_act(x, weight, bias, slope_, stride_);
}

}  // namespace lockstep::models
