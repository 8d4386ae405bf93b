#pragma once

// A transformer's parts as autograd functions over lockstep/kernels: on a GPU
// in bf16, or through the CPU twins (fp32 or bf16) in tests. Parameters stay
// fp32 where a rank has all of them; `copies` hold them in the type of the
// arithmetic, which gathered ones (Fsdp) have themselves. Gradients of
// parameters are summed in fp32 and added straight to their .grad where it is
// there (a bucket of Ddp's, what travels of Fsdp's), and returned to autograd
// where it is not; hooks run either way.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

namespace lockstep::models {

// fp32 parameters in another type, refreshed by one launch. Where a parameter
// has that type already, it is its own copy.
class Copies {
 public:
  // In the order of `parameters`; valid until the next call.
  const std::vector<at::Tensor>& refresh(
      const std::vector<at::Tensor>& parameters,
      at::ScalarType type);

 private:
  std::vector<at::Tensor> copies_;
  at::Tensor table_;
  std::vector<const void*> sources_;
  int64_t largest_ = 0;
  int64_t num_cast_ = 0;
};

// What a block keeps for its way back: everything; only its input, qkv and the
// MLP's hidden layer (the rest is cheap to do again); or only its input.
enum class Keep { kAll, kCheap, kLeast };

struct BlockShape {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 0;
  double eps = 1e-6;
  Keep keep = Keep::kAll;
  // Attention's output and what follows for the first token alone: all that a
  // classifier reads of its last block.
  bool first_only = false;
};

// norm1, qkv, proj, norm2, fc1, fc2: weight and bias each.
constexpr size_t kBlockParameters = 12;
using BlockParameters = std::array<at::Tensor, kBlockParameters>;

// The tokens between blocks, as a sum that nobody has made yet: the next norm
// adds them on its way. `delta` may be undefined. [rows, dim] each.
struct Residual {
  at::Tensor x;
  at::Tensor delta;
};

// Pre-norm block: attention and MLP, each behind a LayerNorm.
Residual fused_block(
    const Residual& tokens,
    const BlockParameters& parameters,
    const BlockParameters& copies,
    const BlockShape& shape);

// x W^T, [rows, in] and [out, in]; x needs no gradient. `weight` may be a
// convolution's in channels_last: its memory is taken as the matrix.
at::Tensor fused_projection(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& copy);

struct Loss {
  at::Tensor loss;  // mean over the rows, fp32
  at::Tensor hits;  // [rows], 1 where the label has the largest logit
};
// Softmax cross-entropy with label smoothing; logits fp32 or bf16.
Loss fused_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    double smoothing);

}  // namespace lockstep::models
