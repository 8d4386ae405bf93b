#include <cmath>

#include "lockstep/kernels/adamw.h"
#include "lockstep/kernels/cast.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {

void cast_many(const CastMany& c) {
  for (int64_t n = 0; n < c.num_items; ++n) {
    const CastItem& item = c.items[n];
    for (int64_t i = 0; i < item.count; ++i) {
      item.to[i] = to_bf16(item.from[i]);
    }
  }
}

void adam(const Adam& a) {
  const double lr = *a.lr;
  const double step = *a.step;
  const double scale = a.gradient_scale != nullptr ? *a.gradient_scale : 1;
  const double step_size = lr / (1 - std::pow(a.beta1, step));
  const double second_root = std::sqrt(1 - std::pow(a.beta2, step));
  for (int64_t n = 0; n < a.num_items; ++n) {
    const AdamItem& item = a.items[n];
    for (int64_t i = 0; i < item.count; ++i) {
      double parameter = item.parameter[i];
      double gradient = item.gradient[i] * scale;
      if (a.coupled) {
        gradient += parameter * item.weight_decay;
      } else {
        parameter -= lr * item.weight_decay * parameter;
      }
      const double first =
          item.first[i] + (gradient - item.first[i]) * (1 - a.beta1);
      const double second =
          a.beta2 * item.second[i] + (1 - a.beta2) * gradient * gradient;
      parameter -=
          step_size * first / (std::sqrt(second) / second_root + a.eps);
      item.parameter[i] = static_cast<float>(parameter);
      item.first[i] = static_cast<float>(first);
      item.second[i] = static_cast<float>(second);
      if (item.copy != nullptr) {
        item.copy[i] = to_bf16(item.parameter[i]);
      }
    }
  }
}

void cross_entropy(const CrossEntropy& c) {
  const auto classes = static_cast<double>(c.classes);
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto logit = [&](int64_t i) {
      return static_cast<double>(get(c.logits, c.type, r * c.classes + i));
    };
    int64_t winner = 0;
    double total = 0;
    for (int64_t i = 0; i < c.classes; ++i) {
      total += logit(i);
      winner = logit(i) > logit(winner) ? i : winner;
    }
    double sum = 0;
    for (int64_t i = 0; i < c.classes; ++i) {
      sum += std::exp(logit(i) - logit(winner));
    }
    const double log_sum = logit(winner) + std::log(sum);
    const int64_t label = c.labels[r];
    c.loss[r] = static_cast<float>(
        (1 - c.smoothing) * (log_sum - logit(label)) +
        c.smoothing * (log_sum - total / classes));
    if (c.hit != nullptr) {
      c.hit[r] = winner == label ? 1.F : 0.F;
    }
    if (c.gradient == nullptr) {
      continue;
    }
    for (int64_t i = 0; i < c.classes; ++i) {
      const double wanted =
          c.smoothing / classes + (i == label ? 1 - c.smoothing : 0.);
      put(c.gradient,
          c.type,
          r * c.classes + i,
          static_cast<float>(
              (std::exp(logit(i) - log_sum) - wanted) * c.weight /
              static_cast<double>(c.rows)));
    }
  }
}

}  // namespace lockstep::kernels::cpu
