#pragma once

// What all kernels share. A kernel is a function over plain memory, twice:
// cpu::name runs here and now, cuda::name is put on a stream and returns at
// once (device pointers, no allocation, no waiting, fit for graph capture).
// Both compute the same function; the twin on the CPU is the plain statement
// of it and the reference of the tests. Shapes that a kernel does not take
// throw std::invalid_argument, a failed launch std::runtime_error. A build
// without CUDA has cuda::name as a function that throws (no_cuda.cpp). Sums
// are made in fp32 in a fixed order: equal inputs, equal bits.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

enum class Type { kFloat32, kBFloat16 };

constexpr size_t size_of(Type type) {
  return type == Type::kFloat32 ? 4 : 2;
}

// A bf16 is the upper half of a float, here as its bits.
inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// cudaStream_t without its header; null is the default stream.
using Stream = void*;

}  // namespace lockstep::kernels
