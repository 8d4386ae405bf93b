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
  if (b.sums == nullptr) {
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
    b.sums[blockIdx.x * b.sums_stride + c] = total;
  }
}

// As cuda::reduce_partials, each map's columns to a place of their own.
__global__ void add_groups(const __grid_constant__ BiasSums b) {
  __shared__ float shared[cuda::kReduceWarps][32];
  const int64_t stride = b.maps * b.channels;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < stride) {
#pragma unroll 8
    for (int g = threadIdx.y; g < b.groups; g += cuda::kReduceWarps) {
      sum += b.sums[g * stride + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < stride) {
    for (int w = 1; w < cuda::kReduceWarps; ++w) {
      sum += shared[w][threadIdx.x];
    }
    b.out[column / b.channels][column % b.channels] += sum;
  }
}

// The values of a plain weight, 8 neighbours a thread; blockIdx.y is the
// convolution. Of one output and tap a row has (conv + 1) x width of them.
struct Plain {
  unsigned at = 0;   // of the 8 in the weight
  unsigned row = 0;  // output and tap
  unsigned channel = 0;
  bool inside = false;
};

__device__ Plain plain_of(int64_t width) {
  const auto rows = static_cast<unsigned>(width * kTaps);
  const auto length = static_cast<unsigned>((blockIdx.y + 1) * width);
  Plain p;
  p.at = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  p.row = p.at / length;
  p.channel = p.at - p.row * length;
  p.inside = p.row < rows;
  return p;
}

__device__ void load_floats(const float* from, float (&to)[kVector]) {
  *reinterpret_cast<float4*>(to) = reinterpret_cast<const float4*>(from)[0];
  *reinterpret_cast<float4*>(to + 4) = reinterpret_cast<const float4*>(from)[1];
}

__global__ void __launch_bounds__(kThreads) pack_dense(const __grid_constant__ DensePack d) {
  const Plain p = plain_of(d.width);
  if (!p.inside) {
    return;
  }
  const auto width = static_cast<unsigned>(d.width);
  const unsigned conv = blockIdx.y;
  const unsigned map = p.channel / width;
  alignas(16) float values[kVector];
  load_floats(d.plain[conv] + p.at, values);
  const unsigned row = (conv - map) * width * kTaps + p.row;
  store(d.packed[map], row * width + p.channel - map * width, values);
}

__global__ void __launch_bounds__(kThreads) unpack_dense(const __grid_constant__ DenseUnpack d) {
  const Plain p = plain_of(d.width);
  if (!p.inside) {
    return;
  }
  const auto width = static_cast<unsigned>(d.width);
  const unsigned row = blockIdx.y * width * kTaps + p.row;
  float found[kVector];
  cuda::unpack<kVector>(load(d.whole, row * d.convs * width + p.channel), found);
  alignas(16) float values[kVector];
  float* plain = d.plain[blockIdx.y] + p.at;
  load_floats(plain, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    values[j] += found[j];
  }
  reinterpret_cast<float4*>(plain)[0] = *reinterpret_cast<float4*>(values);
  reinterpret_cast<float4*>(plain)[1] = *reinterpret_cast<float4*>(values + 4);
}

void expect_dense(int convs, int64_t width, Type type) {
  cuda::expect(
      convs >= 1 && convs <= kMostMaps && width > 0 && width % kVector == 0 &&
          width <= 4096 && type == Type::kBFloat16,
      "dense: 1 to 5 convolutions, a width of 8, 16 and so on, bf16");
}

// Threads for the widest weight of all.
dim3 dense_grid(int convs, int64_t width) {
  const int64_t threads = width * kTaps * convs * width / kVector;
  return {
      static_cast<unsigned>((threads + kThreads - 1) / kThreads),
      static_cast<unsigned>(convs)};
}

}  // namespace

namespace cuda {

int bias_act_groups(int64_t rows, int64_t channels) {
  const int64_t rows_at_once = kThreads / (channels / kVector);
  return static_cast<int>(std::min<int64_t>(
      (rows + rows_at_once - 1) / rows_at_once, kGroups));
}

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
  const int groups = bias_act_groups(b.rows, b.channels);
  backward<<<groups, kThreads, 0, native(stream)>>>(b);
  check_launch("bias_act_backward");
}

void bias_sums(const BiasSums& b, Stream stream) {
  const int64_t columns = b.maps * b.channels;
  add_groups<<<
      static_cast<unsigned>((columns + 31) / 32),
      dim3(32, kReduceWarps),
      0,
      native(stream)>>>(b);
  check_launch("bias_sums");
}

void dense_pack(const DensePack& d, Stream stream) {
  expect_dense(d.convs, d.width, d.type);
  pack_dense<<<dense_grid(d.convs, d.width), kThreads, 0, native(stream)>>>(d);
  check_launch("dense_pack");
}

void dense_unpack(const DenseUnpack& d, Stream stream) {
  expect_dense(d.convs, d.width, d.type);
  unpack_dense<<<
      dense_grid(d.convs, d.width),
      kThreads,
      0,
      native(stream)>>>(d);
  check_launch("dense_unpack");
}

}  // namespace cuda
}  // namespace lockstep::kernels
