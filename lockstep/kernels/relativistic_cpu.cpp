#include "lockstep/kernels/relativistic.h"

#include <cmath>

namespace lockstep::kernels::cpu {
namespace {

double softplus(double x) {
  return std::max(x, 0.) + std::log1p(std::exp(-std::abs(x)));
}
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

void relativistic(const Relativistic& r) {
  const auto samples = static_cast<double>(r.samples);
  const double share = 1 / (samples * static_cast<double>(r.patches));
  double loss_g = 0;
  double loss_d = 0;
  for (int64_t p = 0; p < r.patches; ++p) {
    double mean_real = 0;
    double mean_fake = 0;
    for (int64_t i = 0; i < r.samples; ++i) {
      mean_real += static_cast<double>(r.real[i * r.patches + p]) / samples;
      mean_fake += static_cast<double>(r.fake[i * r.patches + p]) / samples;
    }
    double pull_real = 0;  // of all samples on the mean of the real ones
    double pull_fake = 0;
    for (int64_t i = 0; i < r.samples; ++i) {
      const int64_t at = i * r.patches + p;
      const double a = static_cast<double>(r.real[at]) - mean_fake;
      const double b = static_cast<double>(r.fake[at]) - mean_real;
      loss_g += share * softplus(-b);
      loss_d += share / 2 * (softplus(-a) + softplus(b));
      r.generator_fake[at] = static_cast<float>(-share * sigmoid(-b));
      pull_fake += sigmoid(-a) / samples;
      pull_real += sigmoid(b) / samples;
    }
    for (int64_t i = 0; i < r.samples; ++i) {
      const int64_t at = i * r.patches + p;
      const double a = static_cast<double>(r.real[at]) - mean_fake;
      const double b = static_cast<double>(r.fake[at]) - mean_real;
      r.critic_real[at] =
          static_cast<float>(-share / 2 * (sigmoid(-a) + pull_real));
      r.critic_fake[at] =
          static_cast<float>(share / 2 * (sigmoid(b) + pull_fake));
    }
  }
  r.losses[0] += static_cast<float>(loss_g);
  r.losses[1] += static_cast<float>(loss_d);
}

}  // namespace lockstep::kernels::cpu
