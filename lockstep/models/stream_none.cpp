#include "lockstep/models/launch.h"

namespace lockstep::models {

kernels::Stream current_stream(const at::Tensor& /*tensor*/) {
  return nullptr;
}

}  // namespace lockstep::models
