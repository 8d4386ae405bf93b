#pragma once

// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over many fp32 tensors in
// one launch, with the learning rate, the step and the factor that clips the
// gradients read from device memory, so that a captured graph stays valid.
// Same arithmetic as LibTorch's fused AdamW; `coupled` makes it Adam with L2.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct AdamItem {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* first = nullptr;    // exp_avg
  float* second = nullptr;   // exp_avg_sq
  uint16_t* copy = nullptr;  // bf16 of the new value; null: not wanted
  int64_t count = 0;
  float weight_decay = 0;
};

struct Adam {
  const AdamItem* items = nullptr;  // where the kernel runs
  int64_t num_items = 0;
  int64_t largest = 0;  // the largest count among them
  double beta1 = .9;
  double beta2 = .999;
  double eps = 1e-8;
  bool coupled = false;
  const float* lr = nullptr;              // [1]
  const float* step = nullptr;            // [1], from 1
  const float* gradient_scale = nullptr;  // [1], times the gradient; null: 1
};

namespace cpu {
void adam(const Adam& a);
}  // namespace cpu

namespace cuda {
void adam(const Adam& a, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
