#pragma once

// Matrix product of row-major matrices, d = op(a) op(b) + bias + beta d, sums
// in fp32. On a GPU through cublasLt: the bias is added on the way out, weight
// gradients are added to an fp32 buffer in place, and the first call of each
// shape times the library's candidates and keeps the fastest (inside a graph
// capture, or with LOCKSTEP_GEMM_TUNE=0, it takes the library's first). One
// thread at a time.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct Gemm {
  int64_t m = 0;  // d is [m, n]
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;         // a is [k, m], else [m, k]
  bool transpose_b = false;         // b is [n, k], else [k, n]
  Type type = Type::kBFloat16;      // of a, b and bias
  Type out_type = Type::kBFloat16;  // of d
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // [n]; null: none
  void* d = nullptr;
  float beta = 0;  // 0 or 1
};

namespace cpu {
void gemm(const Gemm& g);
}  // namespace cpu

namespace cuda {
void gemm(const Gemm& g, Stream stream);
// While false, new shapes take the library's first candidate for now: for
// trials of many batch sizes.
void time_candidates(bool wanted);
}  // namespace cuda

}  // namespace lockstep::kernels
