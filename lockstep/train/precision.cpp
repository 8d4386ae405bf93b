#include "lockstep/train/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include "lockstep/base/log.h"

namespace lockstep::train {

AutocastGuard::AutocastGuard(c10::Device device, const std::string& precision)
    : type_(device.type()), active_(precision == "bf16") {
  if (active_) {
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::increment_nesting();
  }
}

AutocastGuard::~AutocastGuard() {
  if (active_) {
    // The cache holds bf16 copies of weights that the next update changes.
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(type_, false);
  }
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

void apply_precision(c10::Device device, const std::string& precision) {
  const bool tf32 = precision == "tf32";
  if (device.is_cuda()) {
    // Both said: LibTorch allows it in convolutions unless told otherwise.
    at::globalContext().setAllowTF32CuBLAS(tf32);
    at::globalContext().setAllowTF32CuDNN(tf32);
    // Shapes stay the same for thousands of steps: time the convolutions once.
    at::globalContext().setBenchmarkCuDNN(true);
  } else if (tf32) {
    log_warning("trainer.precision=tf32 means fp32 on a CPU");
  }
}

}  // namespace lockstep::train
