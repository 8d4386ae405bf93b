#include "lockstep/train/ema.h"

#include <ATen/ops/_foreach_lerp.h>

#include <algorithm>

namespace lockstep::train {
namespace {

std::vector<at::Tensor> values(const parallel::NamedTensors& named) {
  std::vector<at::Tensor> list;
  list.reserve(named.size());
  for (const auto& [name, tensor] : named) {
    list.push_back(tensor);
  }
  return list;
}

}  // namespace

Ema::Ema(double decay, parallel::NamedTensors parameters)
    : decay_(decay), parameters_(std::move(parameters)) {
  for (const auto& [name, tensor] : parameters_) {
    averages_.emplace_back(name, tensor.detach().clone());
  }
}

void Ema::update(int64_t step) {
  const at::NoGradGuard no_grad;
  const double done = static_cast<double>(step);
  const double decay = std::min(decay_, (1 + done) / (10 + done));
  at::_foreach_lerp_(values(averages_), values(parameters_), 1 - decay);
}

void Ema::InPlace::exchange() {
  if (ema_ == nullptr) {
    return;
  }
  const at::NoGradGuard no_grad;
  // One at a time: no second copy of the model.
  for (size_t i = 0; i < ema_->parameters_.size(); ++i) {
    auto& parameter = ema_->parameters_[i].second;
    auto& average = ema_->averages_[i].second;
    const auto kept = parameter.detach().clone();
    parameter.copy_(average);
    average.copy_(kept);
  }
}

}  // namespace lockstep::train
