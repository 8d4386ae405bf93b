#pragma once

// Attention over packed queries, keys and values on a CPU, by LibTorch's own
// kernel, with the gradients written back where the linear layer before reads
// them: autograd would stack the three and turn them round, two more passes
// over the largest tensor of a block.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

// fp32 on a CPU, without autocast.
bool packed_attention_fits(const at::Tensor& qkv);

// qkv [batch, length, 3 x heads x width] -> [batch, length, heads x width].
at::Tensor packed_attention(const at::Tensor& qkv, int64_t heads);

}  // namespace lockstep::models
