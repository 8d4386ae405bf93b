#pragma once

// Kernels on tensors: picks the GPU's or the CPU's half and the stream.

#include <ATen/core/Tensor.h>

#include "lockstep/kernels/types.h"

namespace lockstep::models {

// The stream that this thread puts its work on (stream_cuda.cpp, or
// stream_none.cpp where there is no CUDA).
kernels::Stream current_stream(const at::Tensor& tensor);

kernels::Type kernel_type(const at::Tensor& tensor);

template <class Arguments>
void launch(
    const at::Tensor& on,
    void (*cpu)(const Arguments&),
    void (*cuda)(const Arguments&, kernels::Stream),
    const Arguments& arguments) {
  if (on.is_cuda()) {
    cuda(arguments, current_stream(on));
  } else {
    cpu(arguments);
  }
}

}  // namespace lockstep::models
