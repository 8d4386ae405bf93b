#pragma once

// Where a custom function puts a parameter's gradient, summed in fp32 (or the
// type it names): straight into .grad when it is there with the parameter's
// layout (a bucket of Ddp's, a block of Fsdp's), else in memory of its own that
// autograd then adds. Hooks run either way.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

namespace lockstep::models {

class Sink {
 public:
  explicit Sink(const at::Tensor& parameter, at::ScalarType type = at::kFloat)
      : parameter_(parameter) {
    direct_ = takes(parameter, type);
    sum_ = direct_ ? parameter.grad()
                   : at::zeros_like(parameter, parameter.options().dtype(type));
  }
  // Whether .grad is there and is what a sink would add to.
  static bool takes(
      const at::Tensor& parameter,
      at::ScalarType type = at::kFloat) {
    const auto& grad = parameter.grad();
    return grad.defined() && grad.scalar_type() == type &&
           grad.strides() == parameter.strides() &&
           grad.is_non_overlapping_and_dense();
  }
  float* data() const { return sum_.data_ptr<float>(); }
  // What to add to, with the parameter's layout.
  const at::Tensor& sum() const { return sum_; }
  // Undefined when autograd has nothing left to add.
  at::Tensor result() const {
    return direct_ ? at::Tensor() : sum_.to(parameter_.scalar_type());
  }

 private:
  at::Tensor parameter_;
  at::Tensor sum_;
  bool direct_ = false;
};

}  // namespace lockstep::models
