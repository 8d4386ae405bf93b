#include "lockstep/kernels/relativistic.h"

#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 128;

__device__ float softplus(float x) {
  return fmaxf(x, 0.F) + log1pf(expf(-fabsf(x)));
}
__device__ float sigmoid(float x) {
  return 1.F / (1.F + expf(-x));
}

// The sum over the block, in every thread; always in the same order.
__device__ float block_sum(float value, float* scratch) {
  const float sum = cuda::warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  float all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    all += scratch[w];
  }
  return all;
}

// One block does it all: there are a few thousand logits.
__global__ void __launch_bounds__(kThreads) losses(Relativistic r) {
  __shared__ float scratch[kThreads / 32];
  const float samples = static_cast<float>(r.samples);
  const float share = 1.F / (samples * static_cast<float>(r.patches));
  float loss_g = 0;
  float loss_d = 0;
  // A thread a patch: neighbours lie beside each other.
  for (int64_t p = threadIdx.x; p < r.patches; p += kThreads) {
    float mean_real = 0;
    float mean_fake = 0;
    for (int64_t i = 0; i < r.samples; ++i) {
      mean_real += r.real[i * r.patches + p];
      mean_fake += r.fake[i * r.patches + p];
    }
    mean_real /= samples;
    mean_fake /= samples;
    float pull_real = 0;
    float pull_fake = 0;
    for (int64_t i = 0; i < r.samples; ++i) {
      const int64_t at = i * r.patches + p;
      const float a = r.real[at] - mean_fake;
      const float b = r.fake[at] - mean_real;
      loss_g += share * softplus(-b);
      loss_d += share / 2 * (softplus(-a) + softplus(b));
      r.generator_fake[at] = -share * sigmoid(-b);
      pull_fake += sigmoid(-a) / samples;
      pull_real += sigmoid(b) / samples;
    }
    for (int64_t i = 0; i < r.samples; ++i) {
      const int64_t at = i * r.patches + p;
      const float a = r.real[at] - mean_fake;
      const float b = r.fake[at] - mean_real;
      r.critic_real[at] = -share / 2 * (sigmoid(-a) + pull_real);
      r.critic_fake[at] = share / 2 * (sigmoid(b) + pull_fake);
    }
  }
  loss_g = block_sum(loss_g, scratch);
  loss_d = block_sum(loss_d, scratch);
  if (threadIdx.x == 0) {
    r.losses[0] += loss_g;
    r.losses[1] += loss_d;
  }
}

}  // namespace

namespace cuda {

void relativistic(const Relativistic& r, Stream stream) {
  if (r.samples == 0 || r.patches == 0) {
    return;
  }
  losses<<<1, kThreads, 0, native(stream)>>>(r);
  check_launch("relativistic");
}

}  // namespace cuda
}  // namespace lockstep::kernels
