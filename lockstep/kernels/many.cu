#include <algorithm>

#include "lockstep/kernels/adamw.h"
#include "lockstep/kernels/cast.h"
#include "lockstep/kernels/device.cuh"

// Launches over many tensors: block x of the grid takes chunks of tensor y.

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 128;  // a tensor

dim3 grid_of(int64_t largest, int64_t num_items) {
  const int64_t wanted = (largest / 4 + kThreads - 1) / kThreads;
  return dim3(
      static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, kMostBlocks)),
      static_cast<unsigned>(num_items));
}

__device__ bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

__global__ void __launch_bounds__(kThreads) cast(const CastItem* items) {
  const CastItem item = items[blockIdx.y];
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole =
      aligned(item.from) && aligned(item.to) ? item.count / 4 : 0;
  for (int64_t i = begin; i < whole; i += stride) {
    const float4 value = reinterpret_cast<const float4*>(item.from)[i];
    reinterpret_cast<uint2*>(item.to)[i] = make_uint2(
        cuda::pack_pair(value.x, value.y), cuda::pack_pair(value.z, value.w));
  }
  for (int64_t i = whole * 4 + begin; i < item.count; i += stride) {
    reinterpret_cast<cuda::bf16*>(item.to)[i] =
        __float2bfloat16_rn(item.from[i]);
  }
}

struct AdamNumbers {
  float lr;
  float beta1;
  float beta2;
  float eps;
  float scale;
  float step_size;    // lr / (1 - beta1^step)
  float second_root;  // sqrt(1 - beta2^step)
  bool coupled;
};

__device__ void update(
    const AdamNumbers& n,
    float decay,
    float& parameter,
    float gradient,
    float& first,
    float& second) {
  gradient *= n.scale;
  if (n.coupled) {
    gradient += parameter * decay;
  } else {
    parameter -= n.lr * decay * parameter;
  }
  first = first + (gradient - first) * (1 - n.beta1);
  second = n.beta2 * second + (1 - n.beta2) * gradient * gradient;
  parameter -=
      n.step_size * first / (sqrtf(second) / n.second_root + n.eps);
}

__global__ void __launch_bounds__(kThreads) adam_many(Adam a) {
  const AdamItem item = a.items[blockIdx.y];
  __shared__ AdamNumbers numbers;
  if (threadIdx.x == 0) {
    const double step = *a.step;
    numbers.lr = *a.lr;
    numbers.beta1 = static_cast<float>(a.beta1);
    numbers.beta2 = static_cast<float>(a.beta2);
    numbers.eps = static_cast<float>(a.eps);
    numbers.scale = a.gradient_scale != nullptr ? *a.gradient_scale : 1.F;
    numbers.step_size =
        static_cast<float>(numbers.lr / (1 - pow(a.beta1, step)));
    numbers.second_root = static_cast<float>(sqrt(1 - pow(a.beta2, step)));
    numbers.coupled = a.coupled;
  }
  __syncthreads();
  const AdamNumbers n = numbers;
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const bool vectors = aligned(item.parameter) && aligned(item.gradient) &&
                       aligned(item.first) && aligned(item.second) &&
                       aligned(item.copy);
  const int64_t whole = vectors ? item.count / 4 : 0;
  for (int64_t i = begin; i < whole; i += stride) {
    float4 parameter = reinterpret_cast<float4*>(item.parameter)[i];
    const float4 gradient = reinterpret_cast<const float4*>(item.gradient)[i];
    float4 first = reinterpret_cast<float4*>(item.first)[i];
    float4 second = reinterpret_cast<float4*>(item.second)[i];
    const float decay = item.weight_decay;
    update(n, decay, parameter.x, gradient.x, first.x, second.x);
    update(n, decay, parameter.y, gradient.y, first.y, second.y);
    update(n, decay, parameter.z, gradient.z, first.z, second.z);
    update(n, decay, parameter.w, gradient.w, first.w, second.w);
    reinterpret_cast<float4*>(item.parameter)[i] = parameter;
    reinterpret_cast<float4*>(item.first)[i] = first;
    reinterpret_cast<float4*>(item.second)[i] = second;
    if (item.copy != nullptr) {
      reinterpret_cast<uint2*>(item.copy)[i] = make_uint2(
          cuda::pack_pair(parameter.x, parameter.y),
          cuda::pack_pair(parameter.z, parameter.w));
    }
  }
  for (int64_t i = whole * 4 + begin; i < item.count; i += stride) {
    update(
        n,
        item.weight_decay,
        item.parameter[i],
        item.gradient[i],
        item.first[i],
        item.second[i]);
    if (item.copy != nullptr) {
      reinterpret_cast<cuda::bf16*>(item.copy)[i] =
          __float2bfloat16_rn(item.parameter[i]);
    }
  }
}

}  // namespace

namespace cuda {

void cast_many(const CastMany& c, Stream stream) {
  if (c.num_items == 0) {
    return;
  }
  expect(c.num_items <= 65535, "cast_many: at most 65535 tensors");
  cast<<<grid_of(c.largest, c.num_items), kThreads, 0, native(stream)>>>(
      c.items);
  check_launch("cast_many");
}

void adam(const Adam& a, Stream stream) {
  if (a.num_items == 0) {
    return;
  }
  expect(a.num_items <= 65535, "adam: at most 65535 tensors");
  adam_many<<<grid_of(a.largest, a.num_items), kThreads, 0, native(stream)>>>(
      a);
  check_launch("adam");
}

}  // namespace cuda
}  // namespace lockstep::kernels
