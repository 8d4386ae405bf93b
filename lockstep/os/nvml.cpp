#include "lockstep/os/nvml.h"

#include <dlfcn.h>

#include "lockstep/base/text.h"

namespace lockstep::os {
namespace {

// The C interface of libnvidia-ml.so.1, which is stable.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned int gpu, memory;
};

struct NvmlPci {
  char short_address[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char address[32];
};

class Nvml {
 public:
  Nvml() {
    // Never unloaded: the driver's library keeps threads of its own.
    library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return;
    }
    int (*init)() = nullptr;
    load(init, "nvmlInit_v2");
    load(count_, "nvmlDeviceGetCount_v2");
    load(handle_, "nvmlDeviceGetHandleByIndex_v2");
    load(name_, "nvmlDeviceGetName");
    load(memory_, "nvmlDeviceGetMemoryInfo");
    load(utilization_, "nvmlDeviceGetUtilizationRates");
    load(pci_, "nvmlDeviceGetPciInfo_v3");
    ready_ = init != nullptr && count_ != nullptr && handle_ != nullptr &&
             name_ != nullptr && memory_ != nullptr &&
             utilization_ != nullptr && init() == 0;
  }

  std::vector<GpuLook> look() const {
    std::vector<GpuLook> gpus;
    unsigned int count = 0;
    if (!ready_ || count_(&count) != 0) {
      return gpus;
    }
    for (unsigned int index = 0; index < count; ++index) {
      NvmlDevice device = nullptr;
      if (handle_(index, &device) != 0) {
        continue;
      }
      GpuLook gpu;
      char name[96] = "";
      if (name_(device, name, sizeof(name)) == 0) {
        gpu.name = name;
      }
      NvmlPci pci{};
      if (pci_ != nullptr && pci_(device, &pci) == 0) {
        gpu.address = pci.address;
      }
      NvmlMemory memory{};
      if (memory_(device, &memory) == 0) {
        gpu.memory = Bytes{memory.total};
        gpu.memory_used = Bytes{memory.used};
      }
      NvmlUtilization utilization{};
      if (utilization_(device, &utilization) == 0) {
        gpu.use = utilization.gpu / 100.0;
      }
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* library_ = nullptr;
  bool ready_ = false;
  int (*count_)(unsigned int*) = nullptr;
  int (*handle_)(unsigned int, NvmlDevice*) = nullptr;
  int (*name_)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization_)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*pci_)(NvmlDevice, NvmlPci*) = nullptr;
};

}  // namespace

std::vector<GpuLook> look_at_gpus() {
  static const Nvml nvml;
  return nvml.look();
}

bool is_same_gpu(std::string_view address, std::string_view other) {
  // "1b:00.0" with what is before it, whose zeros are written or not.
  const auto plain = [](std::string_view text) {
    std::string made = lower(text);
    made.erase(0, made.find_first_not_of("0"));
    return made;
  };
  return !address.empty() && plain(address) == plain(other);
}

}  // namespace lockstep::os
