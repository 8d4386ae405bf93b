#include "lockstep/models/linear.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

// [batch, length, channels] seen as a map of length x 1 in channels_last.
at::Tensor as_map(const at::Tensor& tokens) {
  return tokens.contiguous().unsqueeze(2).permute({0, 3, 1, 2});
}

at::Tensor as_tokens(const at::Tensor& map) {
  return map.permute({0, 2, 3, 1}).squeeze(2).contiguous();
}

at::Tensor as_rows(const at::Tensor& tokens) {
  return tokens.reshape({-1, tokens.size(-1)});
}

// Below these a matrix product over all rows is faster: reordering the weights
// for a convolution is not paid back, and its gradient leaves oneDNN for one
// product an image.
constexpr int64_t kRowsForConvolution = 256;
constexpr int64_t kImagesForConvolvedGradient = 16;

bool convolves(const at::Tensor& tokens) {
  return tokens.size(0) * tokens.size(1) >= kRowsForConvolution;
}

at::Tensor
product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::addmm(bias, as_rows(x), weight.t()).view(sizes);
}

// oneDNN by name: at::conv2d gives a 1x1 kernel on few images to MKL, one
// product an image, which reads the weights anew for each.
at::Tensor convolution(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const auto kernel = weight.unsqueeze(2).unsqueeze(3);
  return as_tokens(
      at::mkldnn_convolution(
          as_map(x), kernel, bias, {0, 0}, {1, 1}, {1, 1}, 1));
}

at::Tensor gradient_of_input(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight) {
  if (x.size(0) < kImagesForConvolvedGradient || !convolves(x)) {
    return at::mm(as_rows(gradient), weight).view(x.sizes());
  }
  return as_tokens(
      std::get<0>(at::convolution_backward(
          as_map(gradient),
          as_map(x),
          weight.unsqueeze(2).unsqueeze(3),
          at::OptionalIntArrayRef(),
          {1, 1},
          {0, 0},
          {1, 1},
          false,
          {0, 0},
          1,
          {true, false, false})));
}

class ConvolvedLinear : public torch::autograd::Function<ConvolvedLinear> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor& bias) {
    context->save_for_backward({x, weight});
    return convolves(x) ? convolution(x, weight, bias)
                        : product(x, weight, bias);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const auto gradient = gradients[0].contiguous();
    at::Tensor for_x;
    at::Tensor for_weight;
    at::Tensor for_bias;
    if (context->needs_input_grad(0)) {
      for_x = gradient_of_input(gradient, x, weight);
    }
    if (context->needs_input_grad(1)) {
      const auto rows = as_rows(gradient).t();
      if (Sink::takes(weight)) {  // the product adds to its bucket
        auto sum = weight.grad();
        sum.addmm_(rows, as_rows(x));
      } else {
        for_weight = at::mm(rows, as_rows(x));
      }
    }
    if (context->needs_input_grad(2)) {
      for_bias = as_rows(gradient).sum(0);
    }
    return {for_x, for_weight, for_bias};
  }
};

}  // namespace

at::Tensor token_linear(torch::nn::Linear& layer, const at::Tensor& x) {
  const bool fits =
      x.is_cpu() && x.dim() == 3 && x.scalar_type() == at::kFloat &&
      layer->weight.scalar_type() == at::kFloat && layer->bias.defined() &&
      !at::autocast::is_autocast_enabled(at::kCPU);
  if (!fits) {
    return layer(x);
  }
  return ConvolvedLinear::apply(x, layer->weight, layer->bias);
}

}  // namespace lockstep::models
