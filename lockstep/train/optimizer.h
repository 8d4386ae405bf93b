#pragma once

// Fused optimisers over a list of parameters and their gradients: Adam, AdamW
// and SGD, with gradient clipping by the global norm and a learning rate that
// the schedule gives. State has names, so that checkpoints hold it. One
// thread.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/config.h"

namespace lockstep::train {

// lr x warm-up x decay at `step` (from 1) of `total` (0: unknown, no decay).
double learning_rate(const OptimConfig& config, int64_t step, int64_t total);

class Optimizer {
 public:
  // `decay` says which parameters get weight decay (all when empty), `rates`
  // which share of the learning rate each has (all of it when empty).
  Optimizer(
      const OptimConfig& config,
      std::vector<std::string> names,
      std::vector<at::Tensor> parameters,
      std::vector<char> decay = {},
      std::vector<double> rates = {});

  // For gradients in parts: gives the sum of a value over the ranks.
  void sum_norms_by(std::function<double(double)> total) {
    total_ = std::move(total);
  }

  // Updates in place; gradients may be scaled by clipping. Returns the norm
  // before clipping (0 when clipping is off).
  double step(const std::vector<at::Tensor>& gradients, double lr);

  // The same without waiting for the device: `lr` is a float [1] there, so that
  // a CUDA graph may hold the step. SGD, and where all parameters are fp32 and
  // have the same rate, Adam and AdamW by one kernel.
  bool runs_async() const;
  void step_async(
      const std::vector<at::Tensor>& gradients,
      const at::Tensor& lr);

  // "<name>.exp_avg" and so on, and the step counts.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  // Parameters that are updated alike.
  struct Group {
    double weight_decay = 0;
    double rate = 1;
    std::vector<size_t> members;
  };
  void update(
      const Group& group,
      const std::vector<at::Tensor>& gradients,
      double lr);
  void step_sgd_async(
      const std::vector<at::Tensor>& gradients,
      const at::Tensor& lr);
  OptimConfig config_;
  std::function<double(double)> total_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<Group> groups_;
  std::vector<at::Tensor> first_;   // momentum or exp_avg
  std::vector<at::Tensor> second_;  // exp_avg_sq
  std::vector<at::Tensor> steps_;
  std::vector<const void*> tabled_;  // gradients that the table speaks of
  at::Tensor table_;                 // of kernels::AdamItem, on the device
  int64_t largest_ = 0;
};

}  // namespace lockstep::train
