#pragma once

// NVIDIA's management library, loaded at run time with declarations of our
// own: a machine without a driver simply has no GPUs. Safe from any thread.

#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::os {

struct GpuLook {
  std::string name;
  Bytes memory;
  Bytes memory_used;
  double use = 0;  // 0..1
};

// Every GPU of this machine, as NVML numbers them; empty without a driver.
std::vector<GpuLook> look_at_gpus();

}  // namespace lockstep::os
