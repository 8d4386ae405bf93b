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

int64_t num_rows(const at::Tensor& tokens) {
  return tokens.size(0) * tokens.size(1);
}

// Below these a matrix product over all rows is faster: reordering the weights
// for a convolution is not paid back, nor is what it costs to gather the
// gradient of them, above all where they are wide.
constexpr int64_t kRowsForConvolution = 128;
constexpr int64_t kRowsForWeights = 512;
constexpr int64_t kRowsForWideWeights = 768;

bool convolves(const at::Tensor& tokens) {
  return num_rows(tokens) >= kRowsForConvolution;
}

bool convolves_weights(const at::Tensor& tokens, const at::Tensor& weight) {
  return num_rows(tokens) >= (weight.size(1) > weight.size(0)
                                  ? kRowsForWideWeights
                                  : kRowsForWeights);
}

// A 1x1 kernel on fewer images than this leaves oneDNN on its way back, for one
// product an image. Which rows are an image makes no difference to such a
// kernel, so few long ones may go as more short ones; very short ones are slow.
constexpr int64_t kImages = 16;
constexpr int64_t kShortest = 4;

// How many images, or 0: the rows do not divide so.
int64_t images_of(const at::Tensor& tokens) {
  if (tokens.size(0) >= kImages) {
    return tokens.size(0);
  }
  const int64_t rows = num_rows(tokens);
  for (int64_t images = kImages; images * kShortest <= rows; ++images) {
    if (rows % images == 0) {
      return images;
    }
  }
  return 0;
}

at::Tensor as_images(const at::Tensor& tokens, int64_t images) {
  return as_map(tokens.contiguous().view({images, -1, tokens.size(2)}));
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

// For the input, or else for the weights.
at::Tensor convolved_gradient(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight,
    int64_t images,
    bool of_input) {
  const auto gradients = at::convolution_backward(
      as_images(gradient, images),
      as_images(x, images),
      weight.unsqueeze(2).unsqueeze(3),
      at::OptionalIntArrayRef(),
      {1, 1},
      {0, 0},
      {1, 1},
      false,
      {0, 0},
      1,
      {of_input, !of_input, false});
  return of_input ? as_tokens(std::get<0>(gradients)).view(x.sizes())
                  : std::get<1>(gradients).view(weight.sizes());
}

at::Tensor gradient_of_input(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight) {
  const int64_t images = convolves(x) ? images_of(x) : 0;
  return images > 0 ? convolved_gradient(gradient, x, weight, images, true)
                    : at::mm(as_rows(gradient), weight).view(x.sizes());
}

// Undefined where it has been added to its bucket.
at::Tensor gradient_of_weight(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight) {
  const int64_t images = convolves_weights(x, weight) ? images_of(x) : 0;
  const bool sinks = Sink::takes(weight);
  if (images == 0 && sinks) {  // the product adds
    auto sum = weight.grad();
    sum.addmm_(as_rows(gradient).t(), as_rows(x));
    return {};
  }
  auto own = images > 0 ? convolved_gradient(gradient, x, weight, images, false)
                        : at::mm(as_rows(gradient).t(), as_rows(x));
  if (sinks) {
    auto sum = weight.grad();
    sum.add_(own);
    return {};
  }
  return own;
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
      for_weight = gradient_of_weight(gradient, x, weight);
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
