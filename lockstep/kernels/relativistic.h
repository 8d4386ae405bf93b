#pragma once

// The relativistic average losses of ESRGAN (Jolicoeur-Martineau, arXiv
// 1807.00734) with their gradients, in one pass. Logits are [samples, patches]
// in fp32; a patch is compared with the mean over the samples at its place:
//   G = mean softplus(-(fake - mean real))             real held fixed
//   D = (mean softplus(-(real - mean fake)) + mean softplus(fake - mean real))
//   / 2

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

struct Relativistic {
  const float* real = nullptr;
  const float* fake = nullptr;
  int64_t samples = 0;
  int64_t patches = 0;
  float* losses = nullptr;          // [2]: G, D; added to, so zero it before
  float* generator_fake = nullptr;  // dG / dfake
  float* critic_real = nullptr;     // dD / dreal
  float* critic_fake = nullptr;     // dD / dfake
};

namespace cpu {
void relativistic(const Relativistic& r);
}  // namespace cpu

namespace cuda {
void relativistic(const Relativistic& r, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
