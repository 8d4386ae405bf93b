#pragma once

// What the CPU twins share: memory of either type read and written as float.
// Plain loops; they say what is computed, not how to compute it fast.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels::cpu {

inline float get(const void* from, Type type, int64_t at) {
  return type == Type::kFloat32
             ? static_cast<const float*>(from)[at]
             : from_bf16(static_cast<const uint16_t*>(from)[at]);
}

inline void put(void* to, Type type, int64_t at, float value) {
  if (type == Type::kFloat32) {
    static_cast<float*>(to)[at] = value;
  } else {
    static_cast<uint16_t*>(to)[at] = to_bf16(value);
  }
}

// As it will be read again.
inline float rounded(Type type, float value) {
  return type == Type::kFloat32 ? value : from_bf16(to_bf16(value));
}

}  // namespace lockstep::kernels::cpu
