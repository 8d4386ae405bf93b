#pragma once

// NVIDIA's management library, loaded at run time with declarations of our
// own: a machine without a driver simply has no GPUs. Safe from any thread.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::os {

struct GpuLook {
  std::string name;
  std::string address;  // on the bus, "00000000:1B:00.0"
  Bytes memory;
  Bytes memory_used;
  double use = 0;  // 0..1
};

// Every GPU of this machine, as NVML numbers them; empty without a driver.
std::vector<GpuLook> look_at_gpus();

// Whether two spellings ("0000:1b:00.0", "00000000:1B:00.0") are one address.
// CUDA numbers the GPUs that it may see, so only addresses name one.
bool is_same_gpu(std::string_view address, std::string_view other);

}  // namespace lockstep::os
