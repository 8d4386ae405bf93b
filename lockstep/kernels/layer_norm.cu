#include "lockstep/kernels/layer_norm.h"

#include <algorithm>
#include <type_traits>

#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kWarps = 8;
constexpr int kVector = 8;
constexpr int kMostVectors = 4;  // a lane: dims up to 1024
// Blocks of the way back; each leaves a row of partial sums.
constexpr int kGroups = 264;
constexpr int kSums = 3;

// A warp a row; the row stays in registers.
template <int kVectors>
__global__ void __launch_bounds__(kWarps * 32) forward_rows(NormForward n) {
  const int lane = threadIdx.x % 32;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= n.rows) {
    return;
  }
  const int num_vectors = static_cast<int>(n.dim / kVector);
  const auto* x =
      reinterpret_cast<const uint4*>(static_cast<const bf16*>(n.x) + row * n.dim);
  const uint4* delta = nullptr;
  if (n.delta != nullptr) {
    const int64_t from = n.delta_rows > 0 ? row % n.delta_rows : row;
    delta = reinterpret_cast<const uint4*>(
        static_cast<const bf16*>(n.delta) + from * n.dim);
  }
  float values[kVectors][kVector];
  float total = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int v = lane + 32 * i;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      values[i][j] = 0;
    }
    if (v < num_vectors) {
      const uint4 raw = x[v];
      cuda::unpack<kVector>(raw, values[i]);
      if (delta != nullptr) {
        float more[kVector];
        cuda::unpack<kVector>(delta[v], more);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          values[i][j] += more[j];
        }
        // What is kept is what is normalised, so that the way back agrees.
        const uint4 rounded = cuda::pack<kVector>(values[i]);
        cuda::unpack<kVector>(rounded, values[i]);
        if (n.sum != nullptr) {
          reinterpret_cast<uint4*>(static_cast<bf16*>(n.sum) + row * n.dim)[v] =
              rounded;
        }
      } else if (n.sum != nullptr) {
        reinterpret_cast<uint4*>(static_cast<bf16*>(n.sum) + row * n.dim)[v] =
            raw;
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        total += values[i][j];
      }
    }
  }
  const float mean = cuda::warp_sum(total) / static_cast<float>(n.dim);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (lane + 32 * i < num_vectors) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float apart = values[i][j] - mean;
        squares += apart * apart;
      }
    }
  }
  const float rstd =
      rsqrtf(cuda::warp_sum(squares) / static_cast<float>(n.dim) + n.eps);
  if (lane == 0) {
    n.mean[row] = mean;
    n.rstd[row] = rstd;
  }
  if (n.y == nullptr) {
    return;
  }
  auto* y = reinterpret_cast<uint4*>(static_cast<bf16*>(n.y) + row * n.dim);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int v = lane + 32 * i;
    if (v < num_vectors) {
      const auto* weight = reinterpret_cast<const float4*>(n.weight) + 2 * v;
      const auto* bias = reinterpret_cast<const float4*>(n.bias) + 2 * v;
      const float4 w[2] = {weight[0], weight[1]};
      const float4 b[2] = {bias[0], bias[1]};
      const auto* ws = reinterpret_cast<const float*>(w);
      const auto* bs = reinterpret_cast<const float*>(b);
      float result[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        result[j] = (values[i][j] - mean) * rstd * ws[j] + bs[j];
      }
      y[v] = cuda::pack<kVector>(result);
    }
  }
}

__device__ float load(const void* from, int64_t at) {
  return __bfloat162float(static_cast<const bf16*>(from)[at]);
}

// Any dim: a warp a row, three passes.
__global__ void forward_any(NormForward n) {
  const int lane = threadIdx.x % 32;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= n.rows) {
    return;
  }
  const int64_t from = n.delta_rows > 0 ? row % n.delta_rows : row;
  const auto value = [&](int64_t column) {
    const float own = load(n.x, row * n.dim + column);
    return n.delta == nullptr
               ? own
               : __bfloat162float(__float2bfloat16_rn(
                     own + load(n.delta, from * n.dim + column)));
  };
  float total = 0;
  for (int64_t c = lane; c < n.dim; c += 32) {
    const float one = value(c);
    total += one;
    if (n.sum != nullptr) {
      static_cast<bf16*>(n.sum)[row * n.dim + c] = __float2bfloat16_rn(one);
    }
  }
  const float mean = cuda::warp_sum(total) / static_cast<float>(n.dim);
  float squares = 0;
  // After the sum has been stored x may be gone where sum is x: read sum.
  const auto kept = [&](int64_t column) {
    return n.sum != nullptr ? load(n.sum, row * n.dim + column) : value(column);
  };
  for (int64_t c = lane; c < n.dim; c += 32) {
    const float apart = kept(c) - mean;
    squares += apart * apart;
  }
  const float rstd =
      rsqrtf(cuda::warp_sum(squares) / static_cast<float>(n.dim) + n.eps);
  if (lane == 0) {
    n.mean[row] = mean;
    n.rstd[row] = rstd;
  }
  if (n.y != nullptr) {
    for (int64_t c = lane; c < n.dim; c += 32) {
      static_cast<bf16*>(n.y)[row * n.dim + c] = __float2bfloat16_rn(
          (kept(c) - mean) * rstd * n.weight[c] + n.bias[c]);
    }
  }
}

// Rows of a warp one after the other, the next one loaded while this one is
// computed; the column sums stay in registers until the end.
template <int kVectors>
__global__ void __launch_bounds__(kWarps * 32, 1) backward_rows(NormBackward n) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int num_vectors = static_cast<int>(n.dim / kVector);
  float dweight[kVectors][kVector] = {};
  float dbias[kVectors][kVector] = {};
  float dcolumns[kVectors][kVector] = {};
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  uint4 next_dy[kVectors];
  uint4 next_x[kVectors];
  uint4 next_past[kVectors];
  const auto fetch = [&](int64_t r) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = lane + 32 * i;
      next_dy[i] = next_x[i] = next_past[i] = make_uint4(0, 0, 0, 0);
      if (r < n.rows && v < num_vectors) {
        const int64_t at = r * num_vectors + v;
        next_dy[i] = static_cast<const uint4*>(n.dy)[at];
        next_x[i] = static_cast<const uint4*>(n.sum)[at];
        if (n.residual != nullptr) {
          next_past[i] = static_cast<const uint4*>(n.residual)[at];
        }
      }
    }
  };
  fetch(row);
  for (; row < n.rows; row += stride) {
    const float mean = n.mean[row];
    const float rstd = n.rstd[row];
    float xhat[kVectors][kVector];
    float slope[kVectors][kVector];  // dy * weight
    uint4 past[kVectors];
    float sum_slope = 0;
    float sum_both = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = lane + 32 * i;
      float dy[kVector];
      cuda::unpack<kVector>(next_dy[i], dy);
      cuda::unpack<kVector>(next_x[i], xhat[i]);
      past[i] = next_past[i];
      float4 w[2] = {};
      if (v < num_vectors) {
        const auto* weight = reinterpret_cast<const float4*>(n.weight) + 2 * v;
        w[0] = weight[0];
        w[1] = weight[1];
      }
      const auto* ws = reinterpret_cast<const float*>(w);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        xhat[i][j] = v < num_vectors ? (xhat[i][j] - mean) * rstd : 0;
        slope[i][j] = dy[j] * ws[j];
        sum_slope += slope[i][j];
        sum_both += slope[i][j] * xhat[i][j];
        dweight[i][j] += dy[j] * xhat[i][j];
        dbias[i][j] += dy[j];
      }
    }
    fetch(row + stride);
    const float mean_slope =
        cuda::warp_sum(sum_slope) / static_cast<float>(n.dim);
    const float mean_both = cuda::warp_sum(sum_both) / static_cast<float>(n.dim);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = lane + 32 * i;
      float result[kVector];
      cuda::unpack<kVector>(past[i], result);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        result[j] +=
            (slope[i][j] - mean_slope - xhat[i][j] * mean_both) * rstd;
      }
      if (v < num_vectors) {
        const uint4 raw = cuda::pack<kVector>(result);
        static_cast<uint4*>(n.dx)[row * num_vectors + v] = raw;
        cuda::unpack<kVector>(raw, result);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          dcolumns[i][j] += result[j];
        }
      }
    }
  }
  extern __shared__ float shared[];  // [kWarps, dim]
  float* partial = n.scratch + static_cast<int64_t>(blockIdx.x) * kSums * n.dim;
  const auto reduce = [&](const float(&sums)[kVectors][kVector], int which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = lane + 32 * i;
      if (v < num_vectors) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          shared[warp * n.dim + v * kVector + j] = sums[i][j];
        }
      }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < n.dim; c += kWarps * 32) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) {
        total += shared[w * n.dim + c];
      }
      partial[which * n.dim + c] = total;
    }
  };
  reduce(dweight, 0);
  reduce(dbias, 1);
  reduce(dcolumns, 2);
}

// Any dim: dx by a warp a row; sums by a thread a column.
__global__ void backward_any(NormBackward n) {
  const int lane = threadIdx.x % 32;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= n.rows) {
    return;
  }
  const float mean = n.mean[row];
  const float rstd = n.rstd[row];
  float sum_slope = 0;
  float sum_both = 0;
  for (int64_t c = lane; c < n.dim; c += 32) {
    const int64_t at = row * n.dim + c;
    const float slope = load(n.dy, at) * n.weight[c];
    sum_slope += slope;
    sum_both += slope * (load(n.sum, at) - mean) * rstd;
  }
  const float mean_slope = cuda::warp_sum(sum_slope) / static_cast<float>(n.dim);
  const float mean_both = cuda::warp_sum(sum_both) / static_cast<float>(n.dim);
  for (int64_t c = lane; c < n.dim; c += 32) {
    const int64_t at = row * n.dim + c;
    const float xhat = (load(n.sum, at) - mean) * rstd;
    const float past = n.residual != nullptr ? load(n.residual, at) : 0;
    static_cast<bf16*>(n.dx)[at] = __float2bfloat16_rn(
        past +
        (load(n.dy, at) * n.weight[c] - mean_slope - xhat * mean_both) * rstd);
  }
}

// Which sums a launch makes: those of dy before dx may take its place, those
// of dx after.
__global__ void sums_any(NormBackward n, bool of_dx) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= n.dim) {
    return;
  }
  float weight = 0;
  float bias = 0;
  float columns = 0;
  for (int64_t row = blockIdx.y; row < n.rows; row += gridDim.y) {
    const int64_t at = row * n.dim + c;
    if (of_dx) {
      columns += load(n.dx, at);
    } else {
      const float dy = load(n.dy, at);
      weight += dy * (load(n.sum, at) - n.mean[row]) * n.rstd[row];
      bias += dy;
    }
  }
  float* partial = n.scratch + static_cast<int64_t>(blockIdx.y) * kSums * n.dim;
  if (of_dx) {
    partial[2 * n.dim + c] = columns;
  } else {
    partial[c] = weight;
    partial[n.dim + c] = bias;
  }
}

template <int kVectors>
void launch_forward(const NormForward& n, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((n.rows + kWarps - 1) / kWarps);
  forward_rows<kVectors><<<blocks, kWarps * 32, 0, stream>>>(n);
}

template <int kVectors>
void launch_backward(const NormBackward& n, int groups, cudaStream_t stream) {
  const size_t shared = kWarps * static_cast<size_t>(n.dim) * sizeof(float);
  if (shared > 48 * 1024) {
    cudaFuncSetAttribute(
        backward_rows<kVectors>,
        cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(shared));
  }
  backward_rows<kVectors><<<groups, kWarps * 32, shared, stream>>>(n);
}

bool in_vectors(int64_t dim) {
  return dim % kVector == 0 && dim <= kMostVectors * 32 * kVector;
}

// Calls launch(integral constant) with the vectors a lane needs.
template <class Launch>
void by_vectors(int64_t dim, Launch launch) {
  const int64_t vectors = (dim / kVector + 31) / 32;
  if (vectors <= 1) {
    launch(std::integral_constant<int, 1>());
  } else if (vectors == 2) {
    launch(std::integral_constant<int, 2>());
  } else if (vectors == 3) {
    launch(std::integral_constant<int, 3>());
  } else {
    launch(std::integral_constant<int, kMostVectors>());
  }
}

}  // namespace

size_t norm_scratch(int64_t dim) {
  return static_cast<size_t>(kGroups) * kSums * static_cast<size_t>(dim);
}

namespace cuda {

void norm_forward(const NormForward& n, Stream stream) {
  expect(n.type == Type::kBFloat16, "norm_forward: bf16 only on a GPU");
  if (n.rows == 0) {
    return;
  }
  if (in_vectors(n.dim)) {
    by_vectors(n.dim, [&](auto vectors) {
      launch_forward<vectors()>(n, native(stream));
    });
  } else {
    const auto blocks = static_cast<unsigned>((n.rows + kWarps - 1) / kWarps);
    forward_any<<<blocks, kWarps * 32, 0, native(stream)>>>(n);
  }
  check_launch("norm_forward");
}

void norm_backward(const NormBackward& n, Stream stream) {
  expect(n.type == Type::kBFloat16, "norm_backward: bf16 only on a GPU");
  if (n.rows == 0) {
    return;
  }
  int groups = static_cast<int>(
      std::min<int64_t>((n.rows + kWarps - 1) / kWarps, kGroups));
  if (in_vectors(n.dim)) {
    by_vectors(n.dim, [&](auto vectors) {
      launch_backward<vectors()>(n, groups, native(stream));
    });
  } else {
    groups = static_cast<int>(std::min<int64_t>(n.rows, kGroups));
    const dim3 columns(static_cast<unsigned>((n.dim + 127) / 128), groups);
    sums_any<<<columns, 128, 0, native(stream)>>>(n, false);
    const auto blocks = static_cast<unsigned>((n.rows + kWarps - 1) / kWarps);
    backward_any<<<blocks, kWarps * 32, 0, native(stream)>>>(n);
    sums_any<<<columns, 128, 0, native(stream)>>>(n, true);
  }
  check_launch("norm_backward");
  const int64_t stride = kSums * n.dim;
  float* const outs[kSums] = {n.dweight, n.dbias, n.dcolumns};
  for (int i = 0; i < kSums; ++i) {
    if (outs[i] != nullptr) {
      launch_reduce(
          n.scratch + i * n.dim,
          groups,
          stride,
          n.dim,
          outs[i],
          native(stream));
    }
  }
}

}  // namespace cuda
}  // namespace lockstep::kernels
