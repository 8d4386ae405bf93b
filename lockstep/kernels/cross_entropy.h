#pragma once

// Softmax cross-entropy with label smoothing, its gradient and whether the
// label was hit, in one pass over the logits. loss = (1 - s) * nll(label) + s *
// mean over classes of nll; the gradient is times `weight` / rows.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct CrossEntropy {
  int64_t rows = 0;
  int64_t classes = 0;
  Type type = Type::kBFloat16;      // of logits and gradient
  const void* logits = nullptr;     // [rows, classes]
  const int64_t* labels = nullptr;  // [rows], each below classes
  float smoothing = 0;
  float weight = 1;
  void* gradient = nullptr;  // [rows, classes]; null: not wanted
  float* loss = nullptr;     // [rows]
  float* hit = nullptr;      // [rows], 1 or 0; null: not wanted
};

namespace cpu {
void cross_entropy(const CrossEntropy& c);
}  // namespace cpu

namespace cuda {
void cross_entropy(const CrossEntropy& c, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
