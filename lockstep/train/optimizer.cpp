#include "lockstep/train/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <numbers>

namespace lockstep::train {
namespace {

std::vector<at::Tensor> pick(
    const std::vector<at::Tensor>& all,
    const std::vector<size_t>& members) {
  std::vector<at::Tensor> chosen;
  chosen.reserve(members.size());
  for (size_t index : members) {
    chosen.push_back(all[index]);
  }
  return chosen;
}

}  // namespace

double learning_rate(const OptimConfig& config, int64_t step, int64_t total) {
  if (step <= config.warmup_steps) {
    return config.lr * static_cast<double>(step) /
           static_cast<double>(config.warmup_steps);
  }
  const int64_t span = total - config.warmup_steps;
  if (config.schedule == "constant" || span <= 0) {
    return config.lr;
  }
  const double share = std::min(
      1.,
      static_cast<double>(step - config.warmup_steps) /
          static_cast<double>(span));
  const double left = config.schedule == "linear"
                          ? 1 - share
                          : (1 + std::cos(std::numbers::pi * share)) / 2;
  return config.min_lr + (config.lr - config.min_lr) * left;
}

Optimizer::Optimizer(
    const OptimConfig& config,
    std::vector<std::string> names,
    std::vector<at::Tensor> parameters,
    std::vector<char> decay)
    : config_(config),
      names_(std::move(names)),
      parameters_(std::move(parameters)) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    (decay.empty() || decay[i] ? decayed_ : plain_).push_back(i);
    first_.push_back(at::zeros_like(parameters_[i]));
    if (config_.name != "sgd") {
      second_.push_back(at::zeros_like(parameters_[i]));
    }
    steps_.push_back(at::zeros({}, parameters_[i].options().dtype(at::kFloat)));
  }
}

double Optimizer::step(const std::vector<at::Tensor>& gradients, double lr) {
  at::NoGradGuard no_grad;
  double norm = 0;
  if (config_.clip > 0) {
    norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>();
    if (total_) {
      norm = std::sqrt(total_(norm * norm));
    }
    if (norm > config_.clip) {
      at::_foreach_mul_(gradients, config_.clip / norm);
    }
  }
  at::_foreach_add_(steps_, 1);
  update(decayed_, gradients, lr, config_.weight_decay);
  update(plain_, gradients, lr, 0);
  return norm;
}

void Optimizer::update(
    const std::vector<size_t>& members,
    const std::vector<at::Tensor>& gradients,
    double lr,
    double weight_decay) {
  if (members.empty()) {
    return;
  }
  const auto parameters = pick(parameters_, members);
  const auto chosen = pick(gradients, members);
  const auto first = pick(first_, members);
  if (config_.name == "sgd") {
    const bool first_step = steps_[members[0]].item<float>() == 1;
    at::_fused_sgd_(
        parameters,
        chosen,
        config_.momentum > 0 ? first : std::vector<at::Tensor>(),
        weight_decay,
        config_.momentum,
        lr,
        0,
        false,
        false,
        first_step);
    return;
  }
  const auto second = pick(second_, members);
  const auto steps = pick(steps_, members);
  const auto apply = [&](auto fused) {
    fused(
        parameters,
        chosen,
        first,
        second,
        /*max_exp_avg_sqs=*/at::TensorList(),
        steps,
        lr,
        config_.beta1,
        config_.beta2,
        weight_decay,
        config_.eps,
        /*amsgrad=*/false,
        /*maximize=*/false);
  };
  // Named through lambdas: both names are overloaded.
  if (config_.name == "adamw") {
    apply([](auto&&... words) { at::_fused_adamw_(words...); });
  } else {
    apply([](auto&&... words) { at::_fused_adam_(words...); });
  }
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (size_t i = 0; i < names_.size(); ++i) {
    const bool adam = !second_.empty();
    state.emplace_back(
        names_[i] + (adam ? ".exp_avg" : ".momentum_buffer"), first_[i]);
    if (adam) {
      state.emplace_back(names_[i] + ".exp_avg_sq", second_[i]);
    }
    state.emplace_back(names_[i] + ".step", steps_[i]);
  }
  return state;
}

}  // namespace lockstep::train
