#pragma once

// The arithmetic of reductions. Inputs are combined element by element in the
// order given, so whoever computes an element gets the same bits; bf16 is
// summed in fp32 and rounded once, to nearest even. The widest vector unit of
// the processor is chosen at start-up; every variant gives equal results.
// NaN wins in min and max. Integers wrap. No state, any thread.

#include <cstddef>

#include "lockstep/collective/communicator.h"

namespace lockstep::collective {

// Writes the reduction of `inputs` to each of `outputs`. An output may be one
// of the inputs, but must not overlap one in part. Pointers are aligned to the
// element.
void reduce(
    const void* const* inputs,
    int num_inputs,
    void* const* outputs,
    int num_outputs,
    size_t count,
    DataType type,
    ReduceOp op);

namespace internal {

struct ReduceCall {
  const void* const* inputs;
  int num_inputs;
  void* const* outputs;
  int num_outputs;
  size_t count;
};
using ReduceKernel = void (*)(const ReduceCall& call);

// Indexed by type and operation.
using KernelTable = ReduceKernel[6][3];
extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace internal
}  // namespace lockstep::collective
