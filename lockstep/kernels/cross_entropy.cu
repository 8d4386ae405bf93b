#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kWarps = 4;

__device__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) rows(CrossEntropy c) {
  const int lane = threadIdx.x % 32;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= c.rows) {
    return;
  }
  const T* logits = static_cast<const T*>(c.logits) + row * c.classes;
  const int64_t label = c.labels[row];
  float most = -INFINITY;
  float total = 0;
  for (int64_t i = lane; i < c.classes; i += 32) {
    const auto value = static_cast<float>(logits[i]);
    most = fmaxf(most, value);
    total += value;
  }
  most = warp_max(most);
  total = cuda::warp_sum(total);
  float sum = 0;
  // The first of equal largest wins, as argmax has it.
  auto winner = static_cast<float>(c.classes);
  for (int64_t i = lane; i < c.classes; i += 32) {
    const auto value = static_cast<float>(logits[i]);
    sum += __expf(value - most);
    if (value == most) {
      winner = fminf(winner, static_cast<float>(i));
    }
  }
  sum = cuda::warp_sum(sum);
  winner = -warp_max(-winner);
  const float log_sum = most + __logf(sum);
  const auto classes = static_cast<float>(c.classes);
  const auto own = static_cast<float>(logits[label]);
  if (lane == 0) {
    c.loss[row] = (1 - c.smoothing) * (log_sum - own) +
                  c.smoothing * (log_sum - total / classes);
    if (c.hit != nullptr) {
      c.hit[row] = winner == static_cast<float>(label) ? 1.F : 0.F;
    }
  }
  if (c.gradient == nullptr) {
    return;
  }
  T* gradient = static_cast<T*>(c.gradient) + row * c.classes;
  const float scale = c.weight / static_cast<float>(c.rows);
  for (int64_t i = lane; i < c.classes; i += 32) {
    const float wanted =
        c.smoothing / classes + (i == label ? 1 - c.smoothing : 0.F);
    const float share = __expf(static_cast<float>(logits[i]) - log_sum);
    gradient[i] = static_cast<T>((share - wanted) * scale);
  }
}

}  // namespace

namespace cuda {

void cross_entropy(const CrossEntropy& c, Stream stream) {
  if (c.rows == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>((c.rows + kWarps - 1) / kWarps);
  const auto kernel = c.type == Type::kBFloat16 ? rows<bf16> : rows<float>;
  kernel<<<blocks, kWarps * 32, 0, native(stream)>>>(c);
  check_launch("cross_entropy");
}

}  // namespace cuda
}  // namespace lockstep::kernels
