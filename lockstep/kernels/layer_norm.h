#pragma once

// LayerNorm (Ba et al., arXiv 1607.06450) together with the residual sum that
// comes before it: sum = x + delta, y = (sum - mean) * rstd * weight + bias.
// The way back adds the gradient that flows past the norm and, on the way,
// sums the columns of the result, which is the gradient of the bias of the
// linear layer that made delta. One pass over memory each way.
// cuda: bf16 only; multiples of 8 up to 1024 in registers, other dims slower.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct NormForward {
  int64_t rows = 0;
  int64_t dim = 0;
  float eps = 1e-6F;
  Type type = Type::kBFloat16;
  const void* x = nullptr;      // [rows, dim]
  const void* delta = nullptr;  // added first; null: nothing
  int64_t delta_rows = 0;       // delta repeats after so many; 0: rows
  const float* weight = nullptr;
  const float* bias = nullptr;
  void* sum = nullptr;  // [rows, dim]; null: not wanted
  void* y = nullptr;    // [rows, dim]; null: not wanted
  float* mean = nullptr;
  float* rstd = nullptr;
};

struct NormBackward {
  int64_t rows = 0;
  int64_t dim = 0;
  Type type = Type::kBFloat16;
  const void* dy = nullptr;        // [rows, dim]
  const void* sum = nullptr;       // as forward gave it
  const void* residual = nullptr;  // [rows, dim], added to dx; null: nothing
  const float* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;  // [rows, dim]; may be dy or residual
  // [dim] each; what is found is added to them.
  float* dweight = nullptr;
  float* dbias = nullptr;
  float* dcolumns = nullptr;  // column sums of dx; null: not wanted
  float* scratch = nullptr;   // cuda: norm_scratch(dim) floats
};

size_t norm_scratch(int64_t dim);

namespace cpu {
void norm_forward(const NormForward& n);
void norm_backward(const NormBackward& n);
}  // namespace cpu

namespace cuda {
void norm_forward(const NormForward& n, Stream stream);
void norm_backward(const NormBackward& n, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
