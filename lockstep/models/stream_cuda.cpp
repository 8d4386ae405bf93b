#include <c10/cuda/CUDAStream.h>

#include "lockstep/models/launch.h"

namespace lockstep::models {

kernels::Stream current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace lockstep::models
