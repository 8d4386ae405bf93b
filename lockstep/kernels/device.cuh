#pragma once

// What the CUDA files share: vectors of bf16, warp sums, the check of a launch.
// For .cu files only.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "lockstep/kernels/types.h"

namespace lockstep::kernels::cuda {

using bf16 = __nv_bfloat16;

inline void expect(bool good, const char* what) {
  if (!good) {
    throw std::invalid_argument(what);
  }
}

inline void check_launch(const char* kernel) {
  const cudaError_t failure = cudaGetLastError();
  if (failure != cudaSuccess) {
    throw std::runtime_error(
        std::string(kernel) + ": " + cudaGetErrorString(failure));
  }
}

inline cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}

// kVector neighbours, loaded and stored as one.
template <int kVector>
struct Pack;
template <>
struct Pack<8> {
  using Raw = uint4;
};
template <>
struct Pack<4> {
  using Raw = uint2;
};
template <>
struct Pack<1> {
  using Raw = unsigned short;
};

template <int kVector>
__device__ inline void unpack(
    const typename Pack<kVector>::Raw& raw,
    float (&values)[kVector]) {
  if constexpr (kVector == 1) {
    values[0] = __uint_as_float(static_cast<unsigned>(raw) << 16);
  } else {
    const auto* pairs = reinterpret_cast<const unsigned*>(&raw);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      values[2 * i] = __uint_as_float(pairs[i] << 16);
      values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000U);
    }
  }
}

__device__ inline unsigned pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <int kVector>
__device__ inline typename Pack<kVector>::Raw pack(
    const float (&values)[kVector]) {
  typename Pack<kVector>::Raw raw;
  if constexpr (kVector == 1) {
    const bf16 one = __float2bfloat16_rn(values[0]);
    raw = *reinterpret_cast<const unsigned short*>(&one);
  } else {
    auto* pairs = reinterpret_cast<unsigned*>(&raw);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      pairs[i] = pack_pair(values[2 * i], values[2 * i + 1]);
    }
  }
  return raw;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

// out[c] += sum over g of partial[g * stride + c]; a warp's lanes take
// neighbouring columns, its block's warps share the groups. There are few
// columns, so the time is that of a thread's reads one after the other: many
// warps, and several reads under way in each.
constexpr int kReduceWarps = 16;
static __global__ void reduce_partials(
    const float* partial,
    int groups,
    int64_t stride,
    int64_t columns,
    float* out) {
  __shared__ float sums[kReduceWarps][32];
  const int lane = threadIdx.x;
  const int warp = threadIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int g = warp; g < groups; g += kReduceWarps) {
      sum += partial[g * stride + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < columns) {
    for (int w = 1; w < kReduceWarps; ++w) {
      sum += sums[w][lane];
    }
    out[column] += sum;
  }
}

inline void launch_reduce(
    const float* partial,
    int groups,
    int64_t stride,
    int64_t columns,
    float* out,
    cudaStream_t stream) {
  reduce_partials<<<
      static_cast<unsigned>((columns + 31) / 32),
      dim3(32, kReduceWarps),
      0,
      stream>>>(partial, groups, stride, columns, out);
  check_launch("reduce_partials");
}

}  // namespace lockstep::kernels::cuda
