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
  // `decay` says which parameters get weight decay (all when empty).
  Optimizer(
      const OptimConfig& config,
      std::vector<std::string> names,
      std::vector<at::Tensor> parameters,
      std::vector<char> decay = {});

  // For gradients in parts: gives the sum of a value over the ranks.
  void sum_norms_by(std::function<double(double)> total) {
    total_ = std::move(total);
  }

  // Updates in place; gradients may be scaled by clipping. Returns the norm
  // before clipping (0 when clipping is off).
  double step(const std::vector<at::Tensor>& gradients, double lr);

  // The same by one kernel, without waiting for the device: `lr` is a float [1]
  // there, so that a CUDA graph may hold the step. Adam and AdamW, fp32.
  bool runs_async() const;
  void step_async(
      const std::vector<at::Tensor>& gradients,
      const at::Tensor& lr);

  // "<name>.exp_avg" and so on, and the step counts.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  void update(
      const std::vector<size_t>& members,
      const std::vector<at::Tensor>& gradients,
      double lr,
      double weight_decay);
  OptimConfig config_;
  std::function<double(double)> total_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<size_t> decayed_;
  std::vector<size_t> plain_;
  std::vector<at::Tensor> first_;   // momentum or exp_avg
  std::vector<at::Tensor> second_;  // exp_avg_sq
  std::vector<at::Tensor> steps_;
  std::vector<const void*> tabled_;  // gradients that the table speaks of
  at::Tensor table_;                 // of kernels::AdamItem, on the device
  int64_t largest_ = 0;
};

}  // namespace lockstep::train
