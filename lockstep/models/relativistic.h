#pragma once

// The relativistic average losses of generator and discriminator and what they
// send back, from one evaluation of the logits (kernels/relativistic.h). Both
// networks' steps read it, so that real and generated images pass the
// discriminator once each.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

struct RelativisticLoss {
  at::Tensor generator;       // []
  at::Tensor discriminator;   // []
  at::Tensor generator_fake;  // d generator / d fake, real held fixed
  at::Tensor critic_real;     // d discriminator / d real
  at::Tensor critic_fake;     // d discriminator / d fake
};

// Logits of equal shape [n, ...], fp32 or fp64; no gradient is tracked.
RelativisticLoss relativistic_loss(
    const at::Tensor& real,
    const at::Tensor& fake);

}  // namespace lockstep::models
