#pragma once

// Softmax attention over short sequences, straight from and to the packed
// tensor that one linear layer makes: qkv [batch, length, 3, heads, width]. No
// copy in another order is made, nothing but qkv is kept for the way back, and
// the column sums of dqkv (the gradient of the bias) come with it. cuda: bf16,
// length up to 64, width 64 (attention_fits); one block a head.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct AttentionForward {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t width = 64;
  Type type = Type::kBFloat16;
  const void* qkv = nullptr;
  void* out = nullptr;  // [batch, length, heads, width]
};

struct AttentionBackward {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t width = 64;
  Type type = Type::kBFloat16;
  const void* qkv = nullptr;
  const void* dout = nullptr;
  void* dqkv = nullptr;
  float* dbias = nullptr;    // [3, heads, width], added to; null: not wanted
  float* scratch = nullptr;  // cuda: attention_scratch(heads) floats
};

bool attention_fits(int64_t length, int64_t width);
size_t attention_scratch(int64_t heads);

namespace cpu {
void attention_forward(const AttentionForward& a);
void attention_backward(const AttentionBackward& a);
}  // namespace cpu

namespace cuda {
void attention_forward(const AttentionForward& a, Stream stream);
void attention_backward(const AttentionBackward& a, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
