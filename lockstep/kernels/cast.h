#pragma once

// Many fp32 tensors to bf16 in one launch: the weights of a model, before each
// step. The table of tensors is made once and lies where the kernel runs.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct CastItem {
  const float* from = nullptr;
  uint16_t* to = nullptr;
  int64_t count = 0;
};

struct CastMany {
  const CastItem* items = nullptr;
  int64_t num_items = 0;
  int64_t largest = 0;  // the largest count among them
};

namespace cpu {
void cast_many(const CastMany& c);
}  // namespace cpu

namespace cuda {
void cast_many(const CastMany& c, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
