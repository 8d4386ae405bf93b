#include "lockstep/collective/kernels.h"

namespace lockstep::collective {
namespace {

const internal::KernelTable& choose_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return internal::kAvx512Kernels;
  }
  if (__builtin_cpu_supports("avx2")) {
    return internal::kAvx2Kernels;
  }
#endif
  return internal::kBaselineKernels;
}

const internal::KernelTable& kKernels = choose_kernels();

}  // namespace

void reduce(
    const void* const* inputs,
    int num_inputs,
    void* const* outputs,
    int num_outputs,
    size_t count,
    DataType type,
    ReduceOp op) {
  kKernels[static_cast<int>(type)][static_cast<int>(op)](
      {inputs, num_inputs, outputs, num_outputs, count});
}

}  // namespace lockstep::collective
