#include "lockstep/kernels/batch_norm.h"

#include <algorithm>

#include "lockstep/kernels/device.cuh"

// All passes over memory have the same shape: a thread owns 8 neighbouring
// channels, whose constants stay in its registers, and walks down the rows; a
// block is `lanes` such columns wide. Partial sums of the blocks are added in a
// fixed order by a small kernel, which also makes the next pass's constants.

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kVector = 8;
constexpr int kThreads = 256;
constexpr int kMostLanes = 32;
constexpr int kBlocks = 132 * 6;  // in flight, over all domains and columns
constexpr int kUnroll = 4;        // rows in flight a thread
constexpr int kConstants = 5;     // floats a channel between kernels

struct Plan {
  int lanes = 0;   // threads across: vectors of channels
  int tiles = 0;   // blocks across
  int chunks = 0;  // blocks down, a domain
};

Plan plan_for(const BatchNormShape& n) {
  Plan plan;
  const auto vectors = static_cast<int>(n.channels / kVector);
  plan.lanes = kMostLanes;
  while (plan.lanes > 1 && vectors % plan.lanes != 0) {
    plan.lanes /= 2;
  }
  plan.tiles = vectors / plan.lanes;
  const int64_t down = kThreads / plan.lanes * kUnroll;
  const int64_t most = (n.rows + down - 1) / down;
  const int64_t wanted = kBlocks / (plan.tiles * n.domains);
  plan.chunks = static_cast<int>(
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, most)));
  return plan;
}

// Where a thread works.
struct Place {
  int64_t channel = 0;  // the first of its 8
  int64_t row = 0;      // its first
  int64_t step = 0;     // rows between its rows
  int64_t base = 0;     // of its domain, in vectors, at its channel
  int64_t pitch = 0;    // vectors a row
};

__device__ Place place_of(const BatchNormShape& n, const Plan& plan) {
  Place p;
  const int down = kThreads / plan.lanes;
  const int x = threadIdx.x % plan.lanes;
  const int y = threadIdx.x / plan.lanes;
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * plan.lanes + x;
  p.channel = vector * kVector;
  p.pitch = n.channels / kVector;
  p.row = static_cast<int64_t>(blockIdx.y) * down + y;
  p.step = static_cast<int64_t>(plan.chunks) * down;
  p.base = blockIdx.z * n.rows * p.pitch + vector;
  return p;
}

__device__ const uint4* vectors(const void* memory) {
  return static_cast<const uint4*>(memory);
}

__device__ void load_constants(const float* from, float (&to)[kVector]) {
  const auto* pairs = reinterpret_cast<const float4*>(from);
  const float4 low = pairs[0];
  const float4 high = pairs[1];
  to[0] = low.x;
  to[1] = low.y;
  to[2] = low.z;
  to[3] = low.w;
  to[4] = high.x;
  to[5] = high.y;
  to[6] = high.z;
  to[7] = high.w;
}

// Adds up a block's threads of the same channels and leaves both sums in
// partial[domain][chunk][2][channels].
__device__ void leave_sums(
    const BatchNormShape& n,
    const Plan& plan,
    const Place& p,
    const float (&first)[kVector],
    const float (&second)[kVector],
    float* partial) {
  __shared__ float sums[kThreads][2 * kVector + 1];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sums[threadIdx.x][j] = first[j];
    sums[threadIdx.x][kVector + j] = second[j];
  }
  __syncthreads();
  // One thread a sum: lanes x 16 of them.
  for (int i = threadIdx.x; i < plan.lanes * 2 * kVector; i += kThreads) {
    const int x = i / (2 * kVector);
    const int j = i % (2 * kVector);
    float total = 0;
    for (int t = x; t < kThreads; t += plan.lanes) {
      total += sums[t][j];
    }
    const int64_t channel =
        (static_cast<int64_t>(blockIdx.x) * plan.lanes + x) * kVector +
        j % kVector;
    const int64_t row =
        (static_cast<int64_t>(blockIdx.z) * plan.chunks + blockIdx.y) * 2 +
        j / kVector;
    partial[row * n.channels + channel] = total;
  }
}

__global__ void __launch_bounds__(kThreads)
    moments(BatchNormForward n, Plan plan, float* partial) {
  const Place p = place_of(n, plan);
  const uint4* x = vectors(n.x) + p.base;
  float origin[kVector];
  cuda::unpack<kVector>(x[0], origin);
  float sums[kVector] = {};
  float squares[kVector] = {};
  for (int64_t r = p.row; r < n.rows; r += kUnroll * p.step) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = r + u * p.step;
      raw[u] = x[(at < n.rows ? at : r) * p.pitch];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (r + u * p.step < n.rows) {
        float values[kVector];
        cuda::unpack<kVector>(raw[u], values);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float apart = values[j] - origin[j];
          sums[j] += apart;
          squares[j] += apart * apart;
        }
      }
    }
  }
  leave_sums(n, plan, p, sums, squares, partial);
}

// The sums of a channel over the chunks of a domain, by warps of which each
// lane has a channel; valid where threadIdx.y is 0.
__device__ float2 add_chunks(
    const BatchNormShape& n,
    const Plan& plan,
    const float* partial,
    int64_t domain,
    int64_t channel,
    float2 (&shared)[cuda::kReduceWarps][32]) {
  float2 sum = {0, 0};
  if (channel < n.channels) {
#pragma unroll 8
    for (int g = threadIdx.y; g < plan.chunks; g += cuda::kReduceWarps) {
      const float* row = partial + (domain * plan.chunks + g) * 2 * n.channels;
      sum.x += row[channel];
      sum.y += row[n.channels + channel];
    }
  }
  __syncthreads();
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0) {
    for (int w = 1; w < cuda::kReduceWarps; ++w) {
      sum.x += shared[w][threadIdx.x].x;
      sum.y += shared[w][threadIdx.x].y;
    }
  }
  return sum;
}

// constants[domain][0]: scale, [1]: shift.
__global__ void finish_forward(
    BatchNormForward n,
    Plan plan,
    const float* partial,
    float* constants) {
  __shared__ float2 shared[cuda::kReduceWarps][32];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const auto count = static_cast<float>(n.rows);
  for (int64_t d = 0; d < n.domains; ++d) {
    const float2 sum = add_chunks(n, plan, partial, d, c, shared);
    if (threadIdx.y != 0 || c >= n.channels) {
      continue;
    }
    const float origin = __bfloat162float(
        static_cast<const bf16*>(n.x)[d * n.rows * n.channels + c]);
    const float from = sum.x / count;
    const float mean = origin + from;
    const float var = fmaxf(0.F, sum.y / count - from * from);
    const float rstd = rsqrtf(var + n.eps);
    n.mean[d * n.channels + c] = mean;
    n.rstd[d * n.channels + c] = rstd;
    n.running_mean[c] += n.momentum * (mean - n.running_mean[c]);
    const float unbiased = var * count / fmaxf(1.F, count - 1);
    n.running_var[c] += n.momentum * (unbiased - n.running_var[c]);
    float* out = constants + d * kConstants * n.channels + c;
    out[0] = rstd * n.weight[c];
    out[n.channels] = n.bias[c] - mean * rstd * n.weight[c];
  }
}

template <bool kPast, bool kRelu>
__global__ void __launch_bounds__(kThreads)
    scale_rows(BatchNormForward n, Plan plan, const float* constants) {
  const Place p = place_of(n, plan);
  const float* own =
      constants + blockIdx.z * kConstants * n.channels + p.channel;
  float scale[kVector];
  float shift[kVector];
  load_constants(own, scale);
  load_constants(own + n.channels, shift);
  const uint4* x = vectors(n.x) + p.base;
  const uint4* past = vectors(n.past) + (kPast ? p.base : 0);
  uint4* y = static_cast<uint4*>(n.y) + p.base;
  for (int64_t r = p.row; r < n.rows; r += kUnroll * p.step) {
    uint4 raw[kUnroll];
    uint4 more[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = r + u * p.step;
      raw[u] = x[(at < n.rows ? at : r) * p.pitch];
      if constexpr (kPast) {
        more[u] = past[(at < n.rows ? at : r) * p.pitch];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = r + u * p.step;
      if (at < n.rows) {
        float values[kVector];
        cuda::unpack<kVector>(raw[u], values);
        float added[kVector] = {};
        if constexpr (kPast) {
          cuda::unpack<kVector>(more[u], added);
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float value = fmaf(values[j], scale[j], shift[j]) + added[j];
          values[j] = kRelu && value <= 0 ? n.slope * value : value;
        }
        y[at * p.pitch] = cuda::pack<kVector>(values);
      }
    }
  }
}

// dy behind the ReLU: by y where something was added, else by what y was made
// of, in the same words as above.
template <bool kPast, bool kRelu>
__device__ void mask(
    float (&slopes)[kVector],
    const float (&values)[kVector],
    const uint4& made,
    const float (&scale)[kVector],
    const float (&shift)[kVector],
    float slope) {
  if constexpr (kRelu) {
    float y[kVector];
    if constexpr (kPast) {
      cuda::unpack<kVector>(made, y);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float value =
          kPast ? y[j] : fmaf(values[j], scale[j], shift[j]) + 0.F;
      slopes[j] *= value > 0 ? 1 : slope;
    }
  }
}

// Sums of the slopes and of their products with x - mean. Where something was
// added, the masked slopes are its gradient and are left for the next pass.
template <bool kPast, bool kRelu>
__global__ void __launch_bounds__(kThreads)
    slopes_sums(BatchNormBackward n, Plan plan, float* partial) {
  const Place p = place_of(n, plan);
  float mean[kVector];
  float scale[kVector];
  float shift[kVector];
  load_constants(n.mean + blockIdx.z * n.channels + p.channel, mean);
  {
    float rstd[kVector];
    float bias[kVector];
    load_constants(n.rstd + blockIdx.z * n.channels + p.channel, rstd);
    load_constants(n.weight + p.channel, scale);
    load_constants(n.bias + p.channel, bias);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float weight = scale[j];
      scale[j] = rstd[j] * weight;
      shift[j] = bias[j] - mean[j] * rstd[j] * weight;
    }
  }
  const uint4* dy = vectors(n.dy) + p.base;
  const uint4* x = vectors(n.x) + p.base;
  const uint4* y = vectors(n.y) + (kPast && kRelu ? p.base : 0);
  uint4* dpast = static_cast<uint4*>(n.dpast) + (kPast ? p.base : 0);
  float sums[kVector] = {};
  float products[kVector] = {};
  for (int64_t r = p.row; r < n.rows; r += kUnroll * p.step) {
    uint4 raw[kUnroll];
    uint4 raw_x[kUnroll];
    uint4 raw_y[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at =
          (r + u * p.step < n.rows ? r + u * p.step : r) * p.pitch;
      raw[u] = dy[at];
      raw_x[u] = x[at];
      if constexpr (kPast && kRelu) {
        raw_y[u] = y[at];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = r + u * p.step;
      if (at < n.rows) {
        float slopes[kVector];
        float values[kVector];
        cuda::unpack<kVector>(raw[u], slopes);
        cuda::unpack<kVector>(raw_x[u], values);
        mask<kPast, kRelu>(slopes, values, raw_y[u], scale, shift, n.slope);
        if constexpr (kPast) {
          dpast[at * p.pitch] = cuda::pack<kVector>(slopes);
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          sums[j] += slopes[j];
          products[j] += slopes[j] * (values[j] - mean[j]);
        }
      }
    }
  }
  leave_sums(n, plan, p, sums, products, partial);
}

// constants[domain][0..2]: dx = [0] dy + [1] x + [2]; [3], [4]: as forward.
__global__ void finish_backward(
    BatchNormBackward n,
    Plan plan,
    const float* partial,
    float* constants) {
  __shared__ float2 shared[cuda::kReduceWarps][32];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const auto count = static_cast<float>(n.rows);
  float dweight = 0;
  float dbias = 0;
  for (int64_t d = 0; d < n.domains; ++d) {
    const float2 sum = add_chunks(n, plan, partial, d, c, shared);
    if (threadIdx.y != 0 || c >= n.channels) {
      continue;
    }
    const float mean = n.mean[d * n.channels + c];
    const float rstd = n.rstd[d * n.channels + c];
    const float scale = rstd * n.weight[c];
    const float tilt = sum.y * rstd * rstd / count;
    dweight += sum.y * rstd;
    dbias += sum.x;
    float* out = constants + d * kConstants * n.channels + c;
    out[0] = scale;
    out[n.channels] = -scale * tilt;
    out[2 * n.channels] = scale * (mean * tilt - sum.x / count);
    out[3 * n.channels] = scale;
    out[4 * n.channels] = n.bias[c] - mean * rstd * n.weight[c];
  }
  if (threadIdx.y == 0 && c < n.channels) {
    n.dweight[c] += dweight;
    n.dbias[c] += dbias;
  }
}

template <bool kPast, bool kRelu>
__global__ void __launch_bounds__(kThreads)
    slope_rows(BatchNormBackward n, Plan plan, const float* constants) {
  const Place p = place_of(n, plan);
  const float* own =
      constants + blockIdx.z * kConstants * n.channels + p.channel;
  float by_dy[kVector];
  float by_x[kVector];
  float plus[kVector];
  float shift[kVector];
  load_constants(own, by_dy);
  load_constants(own + n.channels, by_x);
  load_constants(own + 2 * n.channels, plus);
  load_constants(own + 4 * n.channels, shift);
  // Behind a sum the slopes are masked already.
  constexpr bool kMask = kRelu && !kPast;
  const uint4* dy = vectors(kPast ? n.dpast : n.dy) + p.base;
  const uint4* x = vectors(n.x) + p.base;
  uint4* dx = static_cast<uint4*>(n.dx) + p.base;
  for (int64_t r = p.row; r < n.rows; r += kUnroll * p.step) {
    uint4 raw[kUnroll];
    uint4 raw_x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at =
          (r + u * p.step < n.rows ? r + u * p.step : r) * p.pitch;
      raw[u] = dy[at];
      raw_x[u] = x[at];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = r + u * p.step;
      if (at < n.rows) {
        float slopes[kVector];
        float values[kVector];
        cuda::unpack<kVector>(raw[u], slopes);
        cuda::unpack<kVector>(raw_x[u], values);
        mask<false, kMask>(slopes, values, raw_x[u], by_dy, shift, n.slope);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          slopes[j] = by_dy[j] * slopes[j] + by_x[j] * values[j] + plus[j];
        }
        dx[at * p.pitch] = cuda::pack<kVector>(slopes);
      }
    }
  }
}

void check(const BatchNormShape& n) {
  cuda::expect(
      n.type == Type::kBFloat16 && n.channels % kVector == 0 && n.rows > 0 &&
          n.domains > 0 && n.domains < 65536,
      "batch_norm: bf16, channels a multiple of 8");
}

struct Launch {
  Plan plan;
  dim3 grid;
  unsigned columns = 0;
  float* constants = nullptr;
  float* partial = nullptr;
};

Launch launch_for(const BatchNormShape& n, float* scratch) {
  Launch l;
  l.plan = plan_for(n);
  l.grid = dim3(
      static_cast<unsigned>(l.plan.tiles),
      static_cast<unsigned>(l.plan.chunks),
      static_cast<unsigned>(n.domains));
  l.columns = static_cast<unsigned>((n.channels + 31) / 32);
  l.constants = scratch;
  l.partial = scratch + n.domains * kConstants * n.channels;
  return l;
}

}  // namespace

size_t batch_norm_scratch(const BatchNormShape& shape) {
  const int64_t floats = shape.domains * shape.channels *
                         (kConstants + 2 * int64_t{plan_for(shape).chunks});
  return static_cast<size_t>(floats);
}

namespace cuda {

void batch_norm_forward(const BatchNormForward& n, Stream stream) {
  check(n);
  const Launch l = launch_for(n, n.scratch);
  const auto on = native(stream);
  moments<<<l.grid, kThreads, 0, on>>>(n, l.plan, l.partial);
  finish_forward<<<l.columns, dim3(32, kReduceWarps), 0, on>>>(
      n, l.plan, l.partial, l.constants);
  const auto apply = [&](auto kernel) {
    kernel<<<l.grid, kThreads, 0, on>>>(n, l.plan, l.constants);
  };
  const bool relu = n.slope != 1;
  if (n.past != nullptr) {
    relu ? apply(scale_rows<true, true>) : apply(scale_rows<true, false>);
  } else {
    relu ? apply(scale_rows<false, true>) : apply(scale_rows<false, false>);
  }
  check_launch("batch_norm_forward");
}

void batch_norm_backward(const BatchNormBackward& n, Stream stream) {
  check(n);
  const Launch l = launch_for(n, n.scratch);
  const auto on = native(stream);
  const auto run = [&](auto sums, auto apply) {
    sums<<<l.grid, kThreads, 0, on>>>(n, l.plan, l.partial);
    finish_backward<<<l.columns, dim3(32, kReduceWarps), 0, on>>>(
        n, l.plan, l.partial, l.constants);
    apply<<<l.grid, kThreads, 0, on>>>(n, l.plan, l.constants);
  };
  const bool relu = n.slope != 1;
  if (n.dpast != nullptr) {
    relu ? run(slopes_sums<true, true>, slope_rows<true, true>)
           : run(slopes_sums<true, false>, slope_rows<true, false>);
  } else {
    relu ? run(slopes_sums<false, true>, slope_rows<false, true>)
           : run(slopes_sums<false, false>, slope_rows<false, false>);
  }
  check_launch("batch_norm_backward");
}

}  // namespace cuda
}  // namespace lockstep::kernels
