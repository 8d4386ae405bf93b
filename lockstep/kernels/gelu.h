#pragma once

// Exact GELU, x * Phi(x) (Hendrycks and Gimpel, arXiv 1606.08415), and its way
// back with the column sums that are the gradient of the bias before it; and
// column sums alone. cuda: bf16 only; the error function is Abramowitz and
// Stegun's 7.1.26, within 1.5e-7.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct GeluForward {
  int64_t count = 0;
  Type type = Type::kBFloat16;
  const void* x = nullptr;
  void* y = nullptr;
};

struct GeluBackward {
  int64_t rows = 0;
  int64_t dim = 0;
  Type type = Type::kBFloat16;
  const void* x = nullptr;   // [rows, dim], what forward took
  const void* dy = nullptr;  // [rows, dim]
  void* dx = nullptr;        // [rows, dim]; may be dy
  float* dbias = nullptr;    // [dim], added to; null: not wanted
  float* scratch = nullptr;  // cuda: column_scratch(dim) floats
};

struct ColumnSum {
  int64_t rows = 0;
  int64_t dim = 0;
  Type type = Type::kBFloat16;
  const void* x = nullptr;
  float* out = nullptr;      // [dim], added to
  float* scratch = nullptr;  // cuda: column_scratch(dim) floats
};

size_t column_scratch(int64_t dim);

namespace cpu {
void gelu_forward(const GeluForward& g);
void gelu_backward(const GeluBackward& g);
void column_sum(const ColumnSum& c);
}  // namespace cpu

namespace cuda {
void gelu_forward(const GeluForward& g, Stream stream);
void gelu_backward(const GeluBackward& g, Stream stream);
void column_sum(const ColumnSum& c, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
