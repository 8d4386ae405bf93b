#include "lockstep/train/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>

#include "lockstep/os/host.h"
#include "lockstep/train/allocator.h"

namespace lockstep::train {
namespace {

uint64_t lowered(uint64_t limit, Bytes wish) {
  return wish.count > 0 ? std::min(limit, wish.count) : limit;
}

class CpuMeter : public MemoryMeter {
 public:
  CpuMeter(int sharers, Bytes wish) {
    reset();
    const uint64_t free = os::available_memory("/").count;
    limit_ = lowered(
        os::resource_use().resident.count +
            free / static_cast<uint64_t>(std::max(1, sharers)),
        wish);
  }
  void reset() override {
    release_cached_memory();
    // The kernel starts a new peak of resident memory; where it may not, what
    // the allocator keeps after the work still shows most of it.
    std::ofstream clear("/proc/self/clear_refs");
    clear << "5";
    clear.flush();
    peaks_ = clear.good();
  }
  uint64_t peak() override {
    const uint64_t now = os::resource_use().resident.count;
    return peaks_ ? std::max(now, high_water()) : now;
  }
  uint64_t limit() const override { return limit_; }

 private:
  static uint64_t high_water() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) {
        return std::stoull(line.substr(6)) * 1024;
      }
    }
    return 0;
  }
  uint64_t limit_ = 0;
  bool peaks_ = false;
};

class DeviceMeter : public MemoryMeter {
 public:
  DeviceMeter(c10::Device device, int sharers, Bytes wish)
      : index_(device.index()),
        allocator_(c10::getDeviceAllocator(device.type())) {
    reset();
    const uint64_t free = allocator_->getMemoryInfo(index_).first;
    limit_ = lowered(
        allocated().current +
            free / static_cast<uint64_t>(std::max(1, sharers)),
        wish);
  }
  void reset() override {
    allocator_->emptyCache();
    allocator_->resetPeakStats(index_);
  }
  uint64_t peak() override { return static_cast<uint64_t>(allocated().peak); }
  uint64_t limit() const override { return limit_; }

 private:
  c10::CachingAllocator::Stat allocated() const {
    const auto stats = allocator_->getDeviceStats(index_);
    return stats.allocated_bytes[static_cast<size_t>(
        c10::CachingAllocator::StatType::AGGREGATE)];
  }
  c10::DeviceIndex index_;
  c10::DeviceAllocator* allocator_;
  uint64_t limit_ = 0;
};

}  // namespace

std::unique_ptr<MemoryMeter>
make_memory_meter(c10::Device device, int sharers, Bytes limit) {
  if (device.is_cpu()) {
    return std::make_unique<CpuMeter>(sharers, limit);
  }
  return std::make_unique<DeviceMeter>(device, sharers, limit);
}

bool is_out_of_memory(const std::exception& failure) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr) {
    return true;
  }
  // LibTorch's own CPU allocator, cuDNN and oneDNN throw plain errors; the
  // last words are oneDNN's when it has no room for its own.
  const std::string text = failure.what();
  return text.find("can't allocate memory") != std::string::npos ||
         text.find("could not create a primitive") != std::string::npos ||
         text.find("out of memory") != std::string::npos;
}

}  // namespace lockstep::train
