#include "lockstep/models/packed_attention.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kParts = 3;  // queries, keys, values

// [3, batch, heads, length, width], seen in the packed memory.
at::Tensor parts_of(const at::Tensor& packed, int64_t heads) {
  const int64_t width = packed.size(2) / (kParts * heads);
  return packed.view({packed.size(0), packed.size(1), kParts, heads, width})
      .permute({2, 0, 3, 1, 4});
}

class PackedAttention : public torch::autograd::Function<PackedAttention> {
 public:
  static at::Tensor
  forward(AutogradContext* context, const at::Tensor& given, int64_t heads) {
    const auto qkv = given.contiguous();
    const auto parts = parts_of(qkv, heads);
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        parts[0], parts[1], parts[2]);
    context->save_for_backward({qkv, out, sums});
    context->saved_data["heads"] = heads;
    return out.transpose(1, 2).reshape(
        {qkv.size(0), qkv.size(1), qkv.size(2) / kParts});
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const auto saved = context->get_saved_variables();
    const int64_t heads = context->saved_data["heads"].toInt();
    const auto& qkv = saved[0];
    const auto parts = parts_of(qkv, heads);
    const auto slopes =
        given[0].view({qkv.size(0), qkv.size(1), heads, -1}).transpose(1, 2);
    const auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            slopes,
            parts[0],
            parts[1],
            parts[2],
            saved[1],
            saved[2],
            /*dropout_p=*/0,
            /*is_causal=*/false);
    auto result = at::empty_like(qkv);
    const auto places = parts_of(result, heads);
    places[0].copy_(dq);
    places[1].copy_(dk);
    places[2].copy_(dv);
    return {result, {}};
  }
};

}  // namespace

bool packed_attention_fits(const at::Tensor& qkv) {
  return qkv.is_cpu() && qkv.scalar_type() == at::kFloat &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

at::Tensor packed_attention(const at::Tensor& qkv, int64_t heads) {
  return PackedAttention::apply(qkv, heads);
}

}  // namespace lockstep::models
