#include "lockstep/models/windows.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "lockstep/kernels/windows.h"
#include "lockstep/models/launch.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kWindow = 16;

k::Windows windows_of(const at::Tensor& map) {
  k::Windows w;
  w.images = map.size(0);
  w.height = map.size(2);
  w.width = map.size(3);
  w.channels = map.size(1);
  w.type = kernel_type(map);
  return w;
}

at::Tensor unfold(const at::Tensor& given) {
  const auto map = given.contiguous(kLast);
  auto w = windows_of(map);
  auto rows = at::empty({w.rows(), kWindow * w.channels}, map.options());
  w.from = map.const_data_ptr();
  w.to = rows.data_ptr();
  launch(map, k::cpu::unfold, k::cuda::unfold, w);
  return rows;
}

at::Tensor fold(const at::Tensor& given, at::IntArrayRef sizes) {
  const auto rows = given.contiguous();
  auto map = at::empty(sizes, rows.options(), kLast);
  auto w = windows_of(map);
  w.from = rows.const_data_ptr();
  w.to = map.data_ptr();
  launch(rows, k::cpu::fold, k::cuda::fold, w);
  return map;
}

class Unfold : public torch::autograd::Function<Unfold> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& map) {
    context->saved_data["sizes"] = map.sizes();
    return unfold(map);
  }
  static variable_list backward(AutogradContext* context, variable_list given) {
    return {fold(given[0], context->saved_data["sizes"].toIntVector())};
  }
};

class Fold : public torch::autograd::Function<Fold> {
 public:
  static at::Tensor forward(
      AutogradContext* /*context*/,
      const at::Tensor& rows,
      at::IntArrayRef sizes) {
    return fold(rows, sizes);
  }
  static variable_list backward(
      AutogradContext* /*context*/,
      variable_list given) {
    return {unfold(given[0]), {}};
  }
};

}  // namespace

at::Tensor unfold_windows(const at::Tensor& map) {
  return Unfold::apply(map);
}

at::Tensor
fold_windows(const at::Tensor& rows, int64_t n, int64_t h, int64_t w) {
  const std::vector<int64_t> sizes = {n, rows.size(1) / kWindow, h, w};
  return Fold::apply(rows, at::IntArrayRef(sizes));
}

}  // namespace lockstep::models
