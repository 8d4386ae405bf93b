#include "lockstep/train/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "lockstep/kernels/adamw.h"
#include "lockstep/train/step_graph.h"

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
  if (config.schedule == "inverse") {
    const auto done = static_cast<double>(step - 1 - config.warmup_steps);
    return config.lr * std::pow(1 + config.lr_gamma * done, -config.lr_decay);
  }
  const int64_t span = total - config.warmup_steps;
  if (config.schedule == "constant" || span <= 0) {
    return config.lr;
  }
  const double share = std::min(
      1.,
      static_cast<double>(step - 1 - config.warmup_steps) /
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
    std::vector<char> decay,
    std::vector<double> rates)
    : config_(config),
      names_(std::move(names)),
      parameters_(std::move(parameters)) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const double shrinks = decay.empty() || decay[i] ? config_.weight_decay : 0;
    const double rate = rates.empty() ? 1 : rates[i];
    auto group = std::ranges::find_if(groups_, [&](const Group& one) {
      return one.weight_decay == shrinks && one.rate == rate;
    });
    if (group == groups_.end()) {
      group = groups_.insert(group, {shrinks, rate, {}});
    }
    group->members.push_back(i);
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
  for (const auto& group : groups_) {
    update(group, gradients, lr);
  }
  return norm;
}

bool Optimizer::runs_async() const {
  if (total_ && config_.clip > 0) {
    return false;  // the norm is known when all ranks have told theirs
  }
  if (config_.name == "sgd") {
    return true;
  }
  bool plain = true;
  for (const auto& group : groups_) {
    plain = plain && group.rate == 1;
  }
  for (const auto& parameter : parameters_) {
    plain = plain && parameter.scalar_type() == at::kFloat &&
            parameter.is_non_overlapping_and_dense();
  }
  return plain;
}

void Optimizer::step_async(
    const std::vector<at::Tensor>& gradients,
    const at::Tensor& lr) {
  at::NoGradGuard no_grad;
  if (config_.name == "sgd") {
    step_sgd_async(gradients, lr);
    return;
  }
  std::vector<const void*> places;
  for (const auto& gradient : gradients) {
    places.push_back(gradient.data_ptr());
  }
  if (places != tabled_) {
    std::vector<kernels::AdamItem> items(parameters_.size());
    for (const auto& group : groups_) {
      for (size_t i : group.members) {
        items[i].parameter = parameters_[i].data_ptr<float>();
        items[i].gradient = gradients[i].data_ptr<float>();
        items[i].first = first_[i].data_ptr<float>();
        items[i].second = second_[i].data_ptr<float>();
        items[i].count = parameters_[i].numel();
        items[i].weight_decay = static_cast<float>(group.weight_decay);
        largest_ = std::max(largest_, items[i].count);
      }
    }
    const size_t bytes = items.size() * sizeof(kernels::AdamItem);
    auto table = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    std::memcpy(table.data_ptr(), items.data(), bytes);
    table_ = table.to(lr.device());
    tabled_ = places;
  }
  at::Tensor scale;
  if (config_.clip > 0) {
    const auto norm = at::stack(at::_foreach_norm(gradients)).norm();
    scale = (config_.clip / norm).clamp_max(1).to(at::kFloat);
  }
  at::_foreach_add_(steps_, 1);
  kernels::Adam a;
  a.items = static_cast<const kernels::AdamItem*>(table_.data_ptr());
  a.num_items = static_cast<int64_t>(parameters_.size());
  a.largest = largest_;
  a.beta1 = config_.beta1;
  a.beta2 = config_.beta2;
  a.eps = config_.eps;
  a.coupled = config_.name == "adam";
  a.lr = lr.data_ptr<float>();
  a.step = steps_[0].data_ptr<float>();
  a.gradient_scale = scale.defined() ? scale.data_ptr<float>() : nullptr;
  if (lr.is_cuda()) {
    kernels::cuda::adam(a, stream_of(lr.device()));
  } else {
    kernels::cpu::adam(a);
  }
}

void Optimizer::step_sgd_async(
    const std::vector<at::Tensor>& gradients,
    const at::Tensor& lr) {
  if (config_.clip > 0) {
    const auto norm = at::stack(at::_foreach_norm(gradients)).norm();
    at::_foreach_mul_(gradients, (config_.clip / norm).clamp_max(1));
  }
  at::_foreach_add_(steps_, 1);
  for (const auto& group : groups_) {
    at::_fused_sgd_(
        pick(parameters_, group.members),
        pick(gradients, group.members),
        config_.momentum > 0 ? pick(first_, group.members)
                             : std::vector<at::Tensor>(),
        group.weight_decay,
        config_.momentum,
        lr.squeeze() * group.rate,
        /*dampening=*/0,
        /*nesterov=*/false,
        /*maximize=*/false,
        /*is_first_step=*/false);
  }
}

void Optimizer::update(
    const Group& group,
    const std::vector<at::Tensor>& gradients,
    double lr) {
  const auto& members = group.members;
  const double weight_decay = group.weight_decay;
  lr *= group.rate;
  const auto parameters = pick(parameters_, members);
  const auto chosen = pick(gradients, members);
  const auto first = pick(first_, members);
  if (config_.name == "sgd") {
    // The buffers begin as zeros: the first step needs no case of its own.
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
        /*is_first_step=*/false);
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
