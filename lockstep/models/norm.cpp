#include "lockstep/models/norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <optional>

#include "lockstep/kernels/batch_norm.h"
#include "lockstep/models/launch.h"
#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
// Of a ReLU below zero.
constexpr double kRelu = 0;
constexpr double kLinear = 1;
constexpr int64_t kSlice = 16;  // channels a CPU thread takes: a cache line

k::BatchNormShape shape_of(const at::Tensor& x, int64_t domains, double slope) {
  k::BatchNormShape shape;
  shape.domains = domains;
  shape.channels = x.size(1);
  shape.rows = x.numel() / (shape.channels * domains);
  shape.type = kernel_type(x);
  shape.slope = static_cast<float>(slope);
  shape.end = shape.channels;
  return shape;
}

// On a CPU its threads share the channels.
template <class Arguments>
void launch_shared(
    const at::Tensor& on,
    void (*cpu)(const Arguments&),
    void (*cuda)(const Arguments&, k::Stream),
    Arguments arguments) {
  if (on.is_cuda()) {
    launch(on, cpu, cuda, arguments);
    return;
  }
  const int64_t slices = (arguments.channels + kSlice - 1) / kSlice;
  const auto threads = static_cast<int64_t>(at::get_num_threads());
  at::parallel_for(
      0, slices, (slices + threads - 1) / threads, [&](int64_t a, int64_t b) {
        auto part = arguments;
        part.begin = a * kSlice;
        part.end = std::min(arguments.channels, b * kSlice);
        cpu(part);
      });
}

at::Tensor scratch_for(const at::Tensor& x, const k::BatchNormShape& shape) {
  const auto count =
      x.is_cuda() ? static_cast<int64_t>(k::batch_norm_scratch(shape)) : 0;
  return at::empty({count}, x.options().dtype(at::kFloat));
}

// Where a parameter's gradient goes: to its sink, or, when this backward pass
// is not asked for it, to memory that nobody reads.
class Wanted {
 public:
  Wanted(AutogradContext* context, size_t edge, const at::Tensor& parameter) {
    if (context->needs_input_grad(edge)) {
      sink_.emplace(parameter);
    } else {
      unread_ = at::empty_like(parameter);
    }
  }
  float* data() const {
    return sink_ ? sink_->data() : unread_.data_ptr<float>();
  }
  at::Tensor result() const { return sink_ ? sink_->result() : at::Tensor(); }

 private:
  std::optional<Sink> sink_;
  at::Tensor unread_;
};

class FusedNorm : public torch::autograd::Function<FusedNorm> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const std::optional<at::Tensor>& past,
      const at::Tensor& weight,
      const at::Tensor& bias,
      torch::nn::BatchNorm2dImpl* layer,
      int64_t domains,
      double slope) {
    k::BatchNormForward n;
    static_cast<k::BatchNormShape&>(n) = shape_of(x, domains, slope);
    const auto sums =
        at::empty({2, domains, n.channels}, x.options().dtype(at::kFloat));
    auto y = at::empty_like(x);
    const auto scratch = scratch_for(x, n);
    n.eps = static_cast<float>(layer->options.eps());
    n.momentum = static_cast<float>(layer->options.momentum().value());
    n.x = x.data_ptr();
    n.past = past ? past->data_ptr() : nullptr;
    n.weight = weight.data_ptr<float>();
    n.bias = bias.data_ptr<float>();
    n.running_mean = layer->running_mean.data_ptr<float>();
    n.running_var = layer->running_var.data_ptr<float>();
    n.mean = sums[0].data_ptr<float>();
    n.rstd = sums[1].data_ptr<float>();
    n.y = y.data_ptr();
    n.scratch = scratch.data_ptr<float>();
    launch_shared(
        x, &k::cpu::batch_norm_forward, &k::cuda::batch_norm_forward, n);
    context->save_for_backward({x, y, weight, bias, sums});
    context->saved_data["domains"] = domains;
    context->saved_data["slope"] = slope;
    context->saved_data["past"] = past.has_value();
    return y;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    k::BatchNormBackward n;
    static_cast<k::BatchNormShape&>(n) = shape_of(
        x,
        context->saved_data["domains"].toInt(),
        context->saved_data["slope"].toDouble());
    const auto dy = gradients[0].contiguous(kLast);
    auto dx = at::empty_like(x);
    auto dpast =
        context->saved_data["past"].toBool() ? at::empty_like(x) : at::Tensor();
    const bool with_past = dpast.defined();
    const Wanted dweight(context, 1 + with_past, saved[2]);
    const Wanted dbias(context, 2 + with_past, saved[3]);
    const auto scratch = scratch_for(x, n);
    n.dy = dy.data_ptr();
    n.x = x.data_ptr();
    n.y = saved[1].data_ptr();
    n.weight = saved[2].data_ptr<float>();
    n.bias = saved[3].data_ptr<float>();
    n.mean = saved[4][0].data_ptr<float>();
    n.rstd = saved[4][1].data_ptr<float>();
    n.dx = dx.data_ptr();
    n.dpast = with_past ? dpast.data_ptr() : nullptr;
    n.dweight = dweight.data();
    n.dbias = dbias.data();
    n.scratch = scratch.data_ptr<float>();
    launch_shared(
        x, &k::cpu::batch_norm_backward, &k::cuda::batch_norm_backward, n);
    return {dx, dpast, dweight.result(), dbias.result(), {}, {}, {}};
  }
};

bool fits(
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer) {
  const bool type = x.is_cuda()
                        ? x.scalar_type() == at::kBFloat16 && x.size(1) % 8 == 0
                        : x.scalar_type() == at::kFloat;
  const auto good = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == x.scalar_type() &&
           tensor.is_contiguous(kLast);
  };
  return type && layer->is_training() && good(x) &&
         (!past.defined() || good(past)) &&
         layer->weight.scalar_type() == at::kFloat;
}

at::Tensor
plain(const at::Tensor& x, torch::nn::BatchNorm2d& layer, int64_t domains) {
  const auto one = [&](const at::Tensor& part) {
    return at::batch_norm(
        part,
        layer->weight,
        layer->bias,
        layer->running_mean,
        layer->running_var,
        layer->is_training(),
        layer->options.momentum().value(),
        layer->options.eps(),
        /*cudnn_enabled=*/true);
  };
  if (domains == 1 || !layer->is_training()) {
    return one(x);
  }
  std::vector<at::Tensor> parts;
  for (const auto& part : x.chunk(domains)) {
    parts.push_back(one(part));
  }
  return at::cat(parts);
}

at::Tensor normalise(
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer,
    int64_t domains,
    double slope) {
  if (layer->is_training()) {
    layer->num_batches_tracked += domains;
  }
  if (fits(x, past, layer)) {
    return FusedNorm::apply(
        x,
        past.defined() ? std::optional(past) : std::nullopt,
        layer->weight,
        layer->bias,
        layer.get(),
        domains,
        slope);
  }
  auto y = plain(x, layer, domains);
  if (past.defined()) {
    y = y.add_(past);
  }
  return slope == kLinear ? y
         : slope == kRelu ? y.relu_()
                          : at::leaky_relu_(y, slope);
}

}  // namespace

at::Tensor
norm(const at::Tensor& x, torch::nn::BatchNorm2d& layer, int64_t domains) {
  return normalise(x, {}, layer, domains, kLinear);
}

at::Tensor
norm_relu(const at::Tensor& x, torch::nn::BatchNorm2d& layer, int64_t domains) {
  return normalise(x, {}, layer, domains, kRelu);
}

at::Tensor norm_leaky_relu(
    const at::Tensor& x,
    torch::nn::BatchNorm2d& layer,
    double slope,
    int64_t domains) {
  return normalise(x, {}, layer, domains, slope);
}

at::Tensor norm_add_relu(
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer,
    int64_t domains) {
  return normalise(x, past, layer, domains, kRelu);
}

}  // namespace lockstep::models
