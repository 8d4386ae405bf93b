#include "lockstep/models/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <optional>

#include "lockstep/kernels/winograd.h"
#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kProducts = k::kWinogradProducts;
constexpr int64_t kFewestChannels = 32;
// Rows that a product needs to pay; more where it has many columns, for the
// weights are 16/9 of what they were.
constexpr int64_t kFewestTiles = 64;
// Both sides of the products of as many tiles as stay in the caches; more for
// the weight's gradient, which is summed over such chunks.
constexpr int64_t kChunkBytes = 2 << 20;
constexpr int64_t kGradientBytes = 4 << 20;

// Fewer multiplications pay where products run near the speed of oneDNN's
// convolutions. On an EPYC of AMD's family 26 they ran at half of it: MKL has
// kernels of its own for another maker's processors. Not measured at start: a
// machine must compute alike every time.
#if defined(__x86_64__)
bool products_are_slow() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != signature_AMD_ebx ||
      __get_cpuid(1, &a, &b, &c, &d) == 0) {
    return false;
  }
  const unsigned family = ((a >> 8) & 0xf) + ((a >> 20) & 0xff);
  return family >= 26;
}
#else
bool products_are_slow() {
  return false;
}
#endif

k::WinogradMap describe(const at::Tensor& map, bool reversed = false) {
  k::WinogradMap m;
  m.images = map.size(0);
  m.height = map.size(2);
  m.width = map.size(3);
  m.channels = map.size(1);
  m.last = m.tiles();
  m.reversed = reversed;
  return m;
}

// From the 9 weights of a kernel to the 16 of its products.
at::Tensor weight_sums(at::ScalarType type) {
  const auto g =
      at::tensor({1., 0., 0., .5, .5, .5, .5, -.5, .5, 0., 0., 1.}, at::kDouble)
          .view({4, 3});
  return at::kron(g, g).to(type);
}

// Room for both sides of the products of a chunk of tiles, of one size for
// most layers: a caching allocator keeps one piece of memory for all of them.
class Room {
 public:
  Room(const at::Tensor& x, const at::Tensor& y, int64_t bytes)
      : in_(x.size(1)), out_(y.size(1)) {
    const int64_t size = static_cast<int64_t>(x.element_size());
    const int64_t of_tile = kProducts * (in_ + out_);
    tiles_ = std::max(kFewestTiles, bytes / (of_tile * size));
    memory_ =
        at::empty({std::max(tiles_ * of_tile, bytes / size)}, x.options());
  }
  int64_t tiles() const { return tiles_; }
  // [16, count, in] and [16, count, out].
  at::Tensor left(int64_t count) const { return part(0, count, in_); }
  at::Tensor products(int64_t count) const {
    return part(kProducts * tiles_ * in_, count, out_);
  }

 private:
  at::Tensor part(int64_t begin, int64_t count, int64_t channels) const {
    return memory_.narrow(0, begin, kProducts * count * channels)
        .view({kProducts, count, channels});
  }

  int64_t in_;
  int64_t out_;
  int64_t tiles_;
  at::Tensor memory_;
};

// `right` is [16, in, out].
template <class T>
void convolve_as(
    const at::Tensor& x,
    const at::Tensor& right,
    const at::Tensor& bias,
    double slope,
    const at::Tensor& y,
    bool reversed) {
  const int64_t all = describe(x).tiles();
  const int64_t threads = at::get_num_threads();
  const T* add = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
  at::parallel_for(
      0, all, (all + threads - 1) / threads, [&](int64_t begin, int64_t end) {
        const at::NoGradGuard no_grad;
        const Room room(x, y, kChunkBytes);
        auto from = describe(x, reversed);
        auto to = describe(y, reversed);
        for (int64_t first = begin; first < end; first += room.tiles()) {
          from.first = to.first = first;
          from.last = to.last = std::min(end, first + room.tiles());
          const auto left = room.left(to.last - first);
          auto products = room.products(to.last - first);
          k::cpu::winograd_input(
              from, x.const_data_ptr<T>(), left.template data_ptr<T>());
          at::bmm_out(products, left, right);
          k::cpu::winograd_output(
              to, products.template data_ptr<T>(), add, slope, y.data_ptr<T>());
        }
      });
}

// `weights` [16, out, in]. `reversed`: from the outputs to the inputs.
at::Tensor convolve(
    const at::Tensor& x,
    const at::Tensor& weights,
    const at::Tensor& bias,
    double slope,
    bool reversed) {
  const auto right = reversed ? weights : weights.transpose(1, 2);
  const auto y = at::empty(
      {x.size(0), right.size(2), x.size(2), x.size(3)}, x.options(), kLast);
  if (x.scalar_type() == at::kDouble) {
    convolve_as<double>(x, right, bias, slope, y, reversed);
  } else {
    convolve_as<float>(x, right, bias, slope, y, reversed);
  }
  return y;
}

// Adds the gradient of the weights as the products read them.
template <class T>
void add_gradient(
    const at::Tensor& x,
    const at::Tensor& gradient,
    at::Tensor& sum) {
  auto from = describe(x);
  auto to = describe(gradient);
  const int64_t all = from.tiles();
  const Room room(x, gradient, kGradientBytes);
  for (int64_t first = 0; first < all; first += room.tiles()) {
    from.first = to.first = first;
    from.last = to.last = std::min(all, first + room.tiles());
    const auto left = room.left(to.last - first);
    const auto products = room.products(to.last - first);
    k::cpu::winograd_input(
        from, x.const_data_ptr<T>(), left.template data_ptr<T>());
    k::cpu::winograd_gradient(
        to, gradient.const_data_ptr<T>(), products.template data_ptr<T>());
    if (first == 0) {
      at::bmm_out(sum, products.transpose(1, 2), left);
    } else {
      sum.baddbmm_(products.transpose(1, 2), left);
    }
  }
}

at::Tensor weight_gradient(
    const at::Tensor& x,
    const at::Tensor& gradient,
    const at::Tensor& weight) {
  auto sum =
      at::empty({kProducts, weight.size(0), weight.size(1)}, weight.options());
  if (x.scalar_type() == at::kDouble) {
    add_gradient<double>(x, gradient, sum);
  } else {
    add_gradient<float>(x, gradient, sum);
  }
  const auto kernels =
      at::mm(weight_sums(weight.scalar_type()).t(), sum.view({kProducts, -1}))
          .view({3, 3, weight.size(0), weight.size(1)});
  const Sink sink(weight, weight.scalar_type());
  sink.sum().permute({2, 3, 0, 1}).add_(kernels);
  return sink.result();
}

class Winograd : public torch::autograd::Function<Winograd> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      double slope,
      const std::optional<at::Tensor>& ready) {
    const auto weights = ready ? *ready : winograd_weight(weight);
    const auto y =
        convolve(x, weights, bias.value_or(at::Tensor()), slope, false);
    context->save_for_backward(
        {x, weight, weights, slope == 1 ? at::Tensor() : y});
    context->saved_data["slope"] = slope;
    context->saved_data["bias"] = bias.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const auto saved = context->get_saved_variables();
    const double slope = context->saved_data["slope"].toDouble();
    auto gradient = given[0].contiguous(kLast);
    if (slope != 1) {
      gradient = at::leaky_relu_backward(
          gradient, saved[3], slope, /*self_is_result=*/true);
    }
    at::Tensor for_x;
    at::Tensor for_weight;
    at::Tensor for_bias;
    if (context->needs_input_grad(0)) {
      for_x = convolve(gradient, saved[2], {}, 1, /*reversed=*/true);
    }
    if (context->needs_input_grad(1)) {
      for_weight = weight_gradient(saved[0], gradient, saved[1]);
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {
      for_bias = gradient.sum({0, 2, 3});
    }
    return {for_x, for_weight, for_bias, {}, {}};
  }
};

}  // namespace

bool winograd_pays() {
  static const bool pays = !products_are_slow();
  return pays;
}

bool takes_winograd(const at::Tensor& x, const at::Tensor& weight) {
  const auto type = x.scalar_type();
  const int64_t channels = std::min(weight.size(0), weight.size(1));
  return x.is_cpu() && !at::autocast::is_autocast_enabled(at::kCPU) &&
         (type == at::kFloat || type == at::kDouble) &&
         weight.scalar_type() == type && x.is_contiguous(kLast) &&
         weight.size(2) == 3 && weight.size(3) == 3 &&
         channels >= kFewestChannels &&
         describe(x).tiles() >= std::max(kFewestTiles, channels / 4);
}

at::Tensor winograd_weight(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const auto kernels = weight.permute({2, 3, 0, 1})
                           .reshape({9, weight.size(0) * weight.size(1)});
  return at::mm(weight_sums(weight.scalar_type()), kernels)
      .view({kProducts, weight.size(0), weight.size(1)});
}

at::Tensor winograd_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double slope,
    const at::Tensor& ready) {
  const auto maybe = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Winograd::apply(x, weight, maybe(bias), slope, maybe(ready));
}

}  // namespace lockstep::models
