#pragma once

// Arithmetic in bf16 while weights stay fp32: autocast for the scope of the
// guard. With fp32 it does nothing; tf32 sets the GPU's matrix mode once.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

namespace lockstep::train {

class AutocastGuard {
 public:
  AutocastGuard(c10::Device device, const std::string& precision);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType type_;
  bool active_;
};

// What a loss is computed from: bf16 as fp32, anything wider as it is.
at::Tensor widened(const at::Tensor& tensor);

// Applies what is global: tf32 on CUDA. Warns once where it means nothing.
void apply_precision(c10::Device device, const std::string& precision);

}  // namespace lockstep::train
