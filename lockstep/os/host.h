#pragma once

// Facts about this machine and this process. Reads /proc, /sys and cgroups
// (v1 and v2); what is not known is 0 or empty.

#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/os/file.h"

namespace lockstep::os {

struct Gpu {
  std::string name;
  Bytes memory;
};

struct HostFacts {
  std::string hostname;
  std::string cpu_model;
  std::string os_name;    // "Debian GNU/Linux 12 (bookworm)"
  int cores = 0;          // that we may use: affinity and cgroup quota counted
  Bytes memory;           // cgroup limit counted
  std::vector<Gpu> gpus;  // NVML, loaded at run time; none without a driver
};
HostFacts host_facts();

// The parts that read files, below any root so that tests can make one.
int usable_cores(const Path& root, int affinity);
Bytes usable_memory(const Path& root);
// What may still be taken now: of the machine, and below each cgroup's limit.
Bytes available_memory(const Path& root);

// One look at what a process and its machine use. CPU seconds are cumulative:
// subtract two looks.
struct ResourceUse {
  Bytes resident;
  Bytes peak_resident;
  double cpu_seconds = 0;         // user + system of this process
  std::vector<double> gpu_use;    // 0..1 by GPU
  std::vector<Bytes> gpu_memory;  // used, by GPU
};
ResourceUse resource_use();

}  // namespace lockstep::os
