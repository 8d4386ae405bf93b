#include "lockstep/kernels/bias_act.h"

#include <algorithm>

#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kThreads = 256;
constexpr int kVector = 8;
constexpr int kGroups = 264;  // blocks that sum columns: two a multiprocessor
constexpr int kTaps = 9;
using Raw = cuda::Pack<kVector>::Raw;

__device__ Raw load(const void* from, int64_t at) {
  return *reinterpret_cast<const Raw*>(static_cast<const bf16*>(from) + at);
}

__device__ void store(void* to, int64_t at, const float (&values)[kVector]) {
  *reinterpret_cast<Raw*>(static_cast<bf16*>(to) + at) =
      cuda::pack<kVector>(values);
}

__global__ void __launch_bounds__(kThreads) forward(BiasActForward b) {
  const int64_t vectors = b.channels / kVector;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= b.rows * vectors) {
    return;
  }
  const int64_t row = index / vectors;
  const int64_t column = (index - row * vectors) * kVector;
  float sum[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum[j] = b.bias != nullptr ? b.bias[column + j] : 0.F;
  }
#pragma unroll
  for (int s = 0; s < kMostMaps; ++s) {
    if (s < b.num_sources) {
      float values[kVector];
      cuda::unpack<kVector>(
          load(b.sources[s].data, row * b.sources[s].stride + column), values);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        sum[j] += values[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum[j] = b.scale * (sum[j] > 0 ? sum[j] : b.slope * sum[j]);
  }
  const int64_t at = row * b.channels + column;
  if (b.residual != nullptr) {
    float values[kVector];
    cuda::unpack<kVector>(load(b.residual, at), values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum[j] += values[j];
    }
  }
  store(b.out, at, sum);
}

// A thread stays in its columns: kThreads is a multiple of the vectors a row.
__global__ void __launch_bounds__(kThreads) backward(BiasActBackward b) {
  __shared__ float shared[kThreads * kVector];
  const int vectors = static_cast<int>(b.channels / kVector);
  const int rows_at_once = kThreads / vectors;
  const int64_t column = (threadIdx.x % vectors) * kVector;
  float sums[kVector] = {};
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_at_once +
                     threadIdx.x / vectors;
       row < b.rows;
       row += static_cast<int64_t>(gridDim.x) * rows_at_once) {
    const int64_t at = row * b.channels + column;
    float values[kVector];
    cuda::unpack<kVector>(load(b.gradient, at), values);
    if (b.output != nullptr) {
      float outputs[kVector];
      cuda::unpack<kVector>(load(b.output, at), outputs);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        values[j] *= outputs[j] > 0 ? 1.F : b.slope;
      }
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      values[j] *= b.scale;
      sums[j] += values[j];
    }
#pragma unroll
    for (int t = 0; t < kMostMaps; ++t) {
      if (t < b.num_targets) {
        store(
            const_cast<void*>(b.targets[t].data),
            row * b.targets[t].stride + column,
            values);
      }
    }
  }
  if (b.bias == nullptr) {
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    shared[threadIdx.x * kVector + j] = sums[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < b.channels; c += kThreads) {
    float total = 0;
    for (int r = 0; r < rows_at_once; ++r) {
      total += shared[r * b.channels + c];
    }
    b.scratch[blockIdx.x * b.channels + c] = total;
  }
}

// A block a row of a plain weight (one output and tap), a warp a map of it.
template <class Packed, bool kBack>
__global__ void turn(DensePack d) {
  const int conv = blockIdx.y;
  const int64_t row = blockIdx.x;
  const int width = static_cast<int>(d.width);
  for (int map = threadIdx.y; map <= conv; map += blockDim.y) {
    float* plain = d.plain[conv] + (row * (conv + 1) + map) * width;
    Packed* packed = static_cast<Packed*>(d.packed[map]) +
                     ((conv - map) * d.width * kTaps + row) * width;
    for (int c = threadIdx.x; c < width; c += 32) {
      if constexpr (kBack) {
        plain[c] += static_cast<float>(packed[c]);
      } else {
        packed[c] = static_cast<Packed>(plain[c]);
      }
    }
  }
}

template <bool kBack>
void launch_turn(const DensePack& d, Stream stream) {
  cuda::expect(
      d.convs >= 1 && d.convs <= kMostMaps, "dense_pack: 1 to 5 convolutions");
  const dim3 grid(
      static_cast<unsigned>(d.width * kTaps), static_cast<unsigned>(d.convs));
  const dim3 block(32, kMostMaps);
  if (d.type == Type::kBFloat16) {
    turn<bf16, kBack><<<grid, block, 0, cuda::native(stream)>>>(d);
  } else {
    turn<float, kBack><<<grid, block, 0, cuda::native(stream)>>>(d);
  }
  cuda::check_launch("dense_pack");
}

}  // namespace

size_t bias_act_scratch(int64_t channels) {
  return static_cast<size_t>(kGroups) * static_cast<size_t>(channels);
}

namespace cuda {

void bias_act_forward(const BiasActForward& b, Stream stream) {
  expect(b.type == Type::kBFloat16, "bias_act_forward: bf16 only on a GPU");
  expect(
      b.channels % kVector == 0 && b.num_sources >= 1 &&
          b.num_sources <= kMostMaps,
      "bias_act_forward: channels a multiple of 8, 1 to 5 sources");
  const int64_t work = b.rows * (b.channels / kVector);
  if (work == 0) {
    return;
  }
  forward<<<
      static_cast<unsigned>((work + kThreads - 1) / kThreads),
      kThreads,
      0,
      native(stream)>>>(b);
  check_launch("bias_act_forward");
}

void bias_act_backward(const BiasActBackward& b, Stream stream) {
  expect(b.type == Type::kBFloat16, "bias_act_backward: bf16 only on a GPU");
  expect(
      b.channels % kVector == 0 && kThreads % (b.channels / kVector) == 0 &&
          b.num_targets >= 1 && b.num_targets <= kMostMaps,
      "bias_act_backward: 8, 16, 32 to 2048 channels, 1 to 5 targets");
  if (b.rows == 0) {
    return;
  }
  const int64_t rows_at_once = kThreads / (b.channels / kVector);
  const auto groups = static_cast<int>(std::min<int64_t>(
      (b.rows + rows_at_once - 1) / rows_at_once, kGroups));
  backward<<<groups, kThreads, 0, native(stream)>>>(b);
  check_launch("bias_act_backward");
  if (b.bias != nullptr) {
    launch_reduce(
        b.scratch, groups, b.channels, b.channels, b.bias, native(stream));
  }
}

void dense_pack(const DensePack& d, Stream stream) {
  launch_turn<false>(d, stream);
}

void dense_unpack(const DensePack& d, Stream stream) {
  launch_turn<true>(d, stream);
}

}  // namespace cuda
}  // namespace lockstep::kernels
