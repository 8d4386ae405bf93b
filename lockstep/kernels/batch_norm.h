#pragma once

// BatchNorm (Ioffe and Szegedy, arXiv 1502.03167) in channels_last with what
// follows it: y = relu((x - mean) * rstd * weight + bias + past), the ReLU
// leaky, plain or left out. The batch holds `domains` parts of equally many
// rows, each with statistics of its own; the running statistics move once for
// each, in order. Two passes over x forward; backward two over x and dy, the
// sign before the ReLU coming from y only where `past` was added. cuda: bf16,
// channels a multiple of 8. cpu: channels [begin, end) of all, so that threads
// may share the work; results do not depend on how.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct BatchNormShape {
  int64_t domains = 1;
  int64_t rows = 0;  // of a domain: images x pixels
  int64_t channels = 0;
  Type type = Type::kBFloat16;
  float slope = 0;    // of the ReLU below zero; 1: none
  int64_t begin = 0;  // cpu: the channels to compute
  int64_t end = 0;
};

struct BatchNormForward : BatchNormShape {
  float eps = 1e-5F;
  float momentum = .1F;
  const void* x = nullptr;     // [domains, rows, channels]
  const void* past = nullptr;  // the same; null: nothing
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* running_mean = nullptr;
  float* running_var = nullptr;
  float* mean = nullptr;  // [domains, channels]
  float* rstd = nullptr;
  void* y = nullptr;
  float* scratch = nullptr;  // cuda: batch_norm_scratch() floats
};

struct BatchNormBackward : BatchNormShape {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* y = nullptr;  // as forward gave it; read behind a ReLU (cuda:
                            // only where something was added before it)
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;
  void* dpast = nullptr;     // null: nothing was added
  float* dweight = nullptr;  // [channels]; what is found is added
  float* dbias = nullptr;
  float* scratch = nullptr;  // cuda
};

// Floats that cuda:: needs.
size_t batch_norm_scratch(const BatchNormShape& shape);

namespace cpu {
void batch_norm_forward(const BatchNormForward& n);
void batch_norm_backward(const BatchNormBackward& n);
}  // namespace cpu

namespace cuda {
void batch_norm_forward(const BatchNormForward& n, Stream stream);
void batch_norm_backward(const BatchNormBackward& n, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
