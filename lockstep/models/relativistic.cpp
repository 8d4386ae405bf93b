#include "lockstep/models/relativistic.h"

#include <torch/types.h>

#include "lockstep/kernels/relativistic.h"
#include "lockstep/models/launch.h"

namespace lockstep::models {
namespace {

// The same in any type, by LibTorch's operations.
RelativisticLoss plainly(const at::Tensor& real, const at::Tensor& fake) {
  const auto a = real - fake.mean(0, true);
  const auto b = fake - real.mean(0, true);
  const double share = 1 / static_cast<double>(real.numel());
  return {
      at::softplus(-b).mean(),
      (at::softplus(-a).mean() + at::softplus(b).mean()) / 2,
      at::sigmoid(-b) * -share,
      (at::sigmoid(-a) + at::sigmoid(b).mean(0, true)) * (-share / 2),
      (at::sigmoid(b) + at::sigmoid(-a).mean(0, true)) * (share / 2)};
}

}  // namespace

RelativisticLoss relativistic_loss(
    const at::Tensor& real,
    const at::Tensor& fake) {
  at::NoGradGuard no_grad;
  if (real.scalar_type() != at::kFloat) {
    return plainly(real, fake);
  }
  const auto first = real.contiguous();
  const auto second = fake.contiguous();
  const auto losses = at::zeros({2}, first.options());
  RelativisticLoss loss{
      losses[0],
      losses[1],
      at::empty_like(second),
      at::empty_like(first),
      at::empty_like(second)};
  kernels::Relativistic r;
  r.real = first.data_ptr<float>();
  r.fake = second.data_ptr<float>();
  r.samples = first.size(0);
  r.patches = r.samples > 0 ? first.numel() / r.samples : 0;
  r.losses = losses.data_ptr<float>();
  r.generator_fake = loss.generator_fake.data_ptr<float>();
  r.critic_real = loss.critic_real.data_ptr<float>();
  r.critic_fake = loss.critic_fake.data_ptr<float>();
  launch(first, kernels::cpu::relativistic, kernels::cuda::relativistic, r);
  return loss;
}

}  // namespace lockstep::models
