#include "lockstep/models/max_pool.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "lockstep/kernels/max_pool.h"
#include "lockstep/models/launch.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

class Pool : public torch::autograd::Function<Pool> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const Pooling& pooling) {
    k::MaxPoolForward m;
    static_cast<k::MaxPoolShape&>(m) = {
        x.size(0),
        x.size(1),
        x.size(2),
        x.size(3),
        pooling.window,
        pooling.stride,
        pooling.padding,
        kernel_type(x)};
    const auto y = at::empty(
        {m.images, m.channels, m.pooled(m.height), m.pooled(m.width)},
        x.options().memory_format(kLast));
    const auto winners = at::empty_like(y, y.options().dtype(at::kByte));
    m.x = x.data_ptr();
    m.y = y.data_ptr();
    m.winners = winners.data_ptr<uint8_t>();
    launch(x, &k::cpu::max_pool_forward, &k::cuda::max_pool_forward, m);
    context->save_for_backward({winners});
    context->saved_data["sizes"] = x.sizes();
    context->saved_data["pooling"] =
        std::vector<int64_t>{pooling.window, pooling.stride, pooling.padding};
    return y;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto winners = context->get_saved_variables()[0];
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const auto pooling = context->saved_data["pooling"].toIntVector();
    const auto dy = gradients[0].contiguous(kLast);
    const auto dx = at::empty(sizes, dy.options().memory_format(kLast));
    k::MaxPoolBackward m;
    static_cast<k::MaxPoolShape&>(m) = {
        sizes[0],
        sizes[1],
        sizes[2],
        sizes[3],
        pooling[0],
        pooling[1],
        pooling[2],
        kernel_type(dy)};
    m.dy = dy.data_ptr();
    m.winners = winners.data_ptr<uint8_t>();
    m.dx = dx.data_ptr();
    launch(dy, &k::cpu::max_pool_backward, &k::cuda::max_pool_backward, m);
    return {dx, {}};
  }
};

}  // namespace

at::Tensor max_pool(const at::Tensor& x, const Pooling& pooling) {
  const bool fits = x.is_cuda() && x.scalar_type() == at::kBFloat16 &&
                    x.size(1) % 8 == 0 && x.is_contiguous(kLast);
  if (fits) {
    return Pool::apply(x, pooling);
  }
  return at::max_pool2d(
      x,
      {pooling.window, pooling.window},
      {pooling.stride, pooling.stride},
      {pooling.padding, pooling.padding});
}

}  // namespace lockstep::models
