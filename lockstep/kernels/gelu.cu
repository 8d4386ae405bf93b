#include "lockstep/kernels/gelu.h"

#include <algorithm>

#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kThreads = 256;
constexpr int kColumnThreads = 64;  // of a block, times kRowThreads
constexpr int kRowThreads = 4;
constexpr int kGroups = 176;  // row groups of the column sums

// Phi(x) and exp(-x^2 / 2), the two things both ways need.
__device__ void normal(float x, float& cumulative, float& bell) {
  constexpr float kRoot = .70710678118654752F;
  const float z = fabsf(x) * kRoot;
  bell = __expf(-z * z);
  const float t = __fdividef(1.F, 1.F + .3275911F * z);
  const float tail =
      ((((1.061405429F * t - 1.453152027F) * t + 1.421413741F) * t -
        .284496736F) *
           t +
       .254829592F) *
      t * bell * .5F;
  cumulative = x >= 0 ? 1.F - tail : tail;
}

__device__ float gelu(float x) {
  float cumulative;
  float bell;
  normal(x, cumulative, bell);
  return x * cumulative;
}

__device__ float gelu_slope(float x) {
  constexpr float kDensity = .39894228040143268F;
  float cumulative;
  float bell;
  normal(x, cumulative, bell);
  return cumulative + x * bell * kDensity;
}

template <int kVector>
__global__ void __launch_bounds__(kThreads)
    forward(const bf16* x, bf16* y, int64_t vectors) {
  using Raw = typename cuda::Pack<kVector>::Raw;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) {
    return;
  }
  float values[kVector];
  cuda::unpack<kVector>(reinterpret_cast<const Raw*>(x)[at], values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    values[j] = gelu(values[j]);
  }
  reinterpret_cast<Raw*>(y)[at] = cuda::pack<kVector>(values);
}

// A thread keeps the sums of its columns over the rows of its group.
template <int kVector, bool kGelu>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads) columns(
    const bf16* x,
    const bf16* dy,
    bf16* dx,
    int64_t rows,
    int64_t vectors,
    float* partial) {
  using Raw = typename cuda::Pack<kVector>::Raw;
  const int64_t v =
      static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  float sums[kVector] = {};
  if (v < vectors) {
    const int64_t stride = static_cast<int64_t>(gridDim.y) * kRowThreads;
#pragma unroll 4
    for (int64_t row =
             static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.y;
         row < rows;
         row += stride) {
      const int64_t at = row * vectors + v;
      float values[kVector];
      cuda::unpack<kVector>(reinterpret_cast<const Raw*>(x)[at], values);
      if constexpr (kGelu) {
        float slopes[kVector];
        cuda::unpack<kVector>(reinterpret_cast<const Raw*>(dy)[at], slopes);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          values[j] = slopes[j] * gelu_slope(values[j]);
        }
        const Raw raw = cuda::pack<kVector>(values);
        reinterpret_cast<Raw*>(dx)[at] = raw;
        cuda::unpack<kVector>(raw, values);
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        sums[j] += values[j];
      }
    }
  }
  __shared__ float shared[kRowThreads][kColumnThreads * kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    shared[threadIdx.y][threadIdx.x * kVector + j] = sums[j];
  }
  __syncthreads();
  if (threadIdx.y == 0 && v < vectors) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      float total = 0;
      for (int r = 0; r < kRowThreads; ++r) {
        total += shared[r][threadIdx.x * kVector + j];
      }
      partial[blockIdx.y * vectors * kVector + v * kVector + j] = total;
    }
  }
}

int groups_of(int64_t rows) {
  return static_cast<int>(
      std::min<int64_t>((rows + kRowThreads - 1) / kRowThreads, kGroups));
}

template <int kVector, bool kGelu>
void launch_columns(
    const void* x,
    const void* dy,
    void* dx,
    int64_t rows,
    int64_t dim,
    float* out,
    float* scratch,
    cudaStream_t stream) {
  const int groups = groups_of(rows);
  const int64_t vectors = dim / kVector;
  const dim3 grid(
      static_cast<unsigned>((vectors + kColumnThreads - 1) / kColumnThreads),
      groups);
  columns<kVector, kGelu>
      <<<grid, dim3(kColumnThreads, kRowThreads), 0, stream>>>(
          static_cast<const bf16*>(x),
          static_cast<const bf16*>(dy),
          static_cast<bf16*>(dx),
          rows,
          vectors,
          scratch);
  cuda::check_launch("columns");
  if (out != nullptr) {
    cuda::launch_reduce(scratch, groups, dim, dim, out, stream);
  }
}

}  // namespace

size_t column_scratch(int64_t dim) {
  return static_cast<size_t>(kGroups) * static_cast<size_t>(dim);
}

namespace cuda {

void gelu_forward(const GeluForward& g, Stream stream) {
  expect(g.type == Type::kBFloat16, "gelu_forward: bf16 only on a GPU");
  if (g.count == 0) {
    return;
  }
  const auto* x = static_cast<const bf16*>(g.x);
  auto* y = static_cast<bf16*>(g.y);
  const int64_t whole = g.count / 8;
  if (whole > 0) {
    const auto blocks =
        static_cast<unsigned>((whole + kThreads - 1) / kThreads);
    forward<8><<<blocks, kThreads, 0, native(stream)>>>(x, y, whole);
  }
  if (const int64_t rest = g.count - whole * 8; rest > 0) {
    forward<1><<<1, kThreads, 0, native(stream)>>>(
        x + whole * 8, y + whole * 8, rest);
  }
  check_launch("gelu_forward");
}

void gelu_backward(const GeluBackward& g, Stream stream) {
  expect(g.type == Type::kBFloat16, "gelu_backward: bf16 only on a GPU");
  if (g.rows == 0) {
    return;
  }
  const auto launch = g.dim % 8 == 0 ? launch_columns<8, true>
                                     : launch_columns<1, true>;
  launch(
      g.x, g.dy, g.dx, g.rows, g.dim, g.dbias, g.scratch, native(stream));
}

void column_sum(const ColumnSum& c, Stream stream) {
  expect(c.type == Type::kBFloat16, "column_sum: bf16 only on a GPU");
  if (c.rows == 0) {
    return;
  }
  const auto launch = c.dim % 8 == 0 ? launch_columns<8, false>
                                     : launch_columns<1, false>;
  launch(
      c.x, nullptr, nullptr, c.rows, c.dim, c.out, c.scratch, native(stream));
}

}  // namespace cuda
}  // namespace lockstep::kernels
