#include "lockstep/train/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace lockstep::train {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLarge = 512 << 10;  // from here on cached
constexpr size_t kAlignment = 64;

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

class CachingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, at::kCPU};
    }
    void* data = bytes < kLarge ? small(bytes) : large(block_size(bytes));
    return {data, data, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static CachingAllocator& instance() {
    // Never destroyed: tensors in statics outlive main.
    static auto* made = new CachingAllocator;
    return *made;
  }

  // Whether there was anything.
  bool release_cached() {
    std::lock_guard lock(mutex_);
    return give_back();
  }

 private:
  struct Block {
    size_t bytes;
    void* raw;
    size_t mapped;
  };

  static void* map(size_t bytes) {
    return mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
  }

  bool give_back() {
    bool any = false;
    for (auto& [bytes, cached] : free_) {
      for (void* data : cached) {
        const Block& block = blocks_.at(data);
        munmap(block.raw, block.mapped);
        blocks_.erase(data);
      }
      any = any || !cached.empty();
      cached.clear();
    }
    return any;
  }

  void* small(size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, kAlignment, bytes) == 0) {
      return data;
    }
    release_cached();
    if (posix_memalign(&data, kAlignment, bytes) != 0) {
      throw std::bad_alloc();
    }
    return data;
  }

  void* large(size_t bytes) {
    std::lock_guard lock(mutex_);
    auto& cached = free_[bytes];
    if (!cached.empty()) {
      void* data = cached.back();
      cached.pop_back();
      return data;
    }
    // A little more is mapped, so that a block starts on a huge page.
    const size_t mapped = bytes + kHugePage;
    void* raw = map(mapped);
    if (raw == MAP_FAILED) {
      // Blocks of other sizes may hold what is lacking.
      give_back();
      raw = map(mapped);
    }
    if (raw == MAP_FAILED) {
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(raw);
    auto* data = reinterpret_cast<void*>(round_up(address, kHugePage));
    madvise(data, bytes, MADV_HUGEPAGE);
    blocks_[data] = {bytes, raw, mapped};
    return data;
  }

  static void release(void* data) {
    if (data == nullptr) {
      return;
    }
    if (reinterpret_cast<uintptr_t>(data) % kHugePage == 0) {
      auto& self = instance();
      std::lock_guard lock(self.mutex_);
      const auto found = self.blocks_.find(data);
      if (found != self.blocks_.end()) {
        self.free_[found->second.bytes].push_back(data);
        return;
      }
    }
    free(data);
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace

// Eighths of a power of two: at most 12% is lost, and sizes meet again.
void join_freed_memory(c10::Device device) {
  const bool told = std::getenv("PYTORCH_ALLOC_CONF") != nullptr ||
                    std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr;
  if (device.is_cuda() && !told) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  }
}

size_t block_size(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return round_up(bytes, std::max<size_t>(step, 4096));
}

void release_cached_memory() {
  CachingAllocator::instance().release_cached();
  malloc_trim(0);
}

void install_caching_allocator() {
  constexpr uint8_t kAboveDefault = 100;
  c10::SetCPUAllocator(&CachingAllocator::instance(), kAboveDefault);
  // What is not a tensor may need what we keep.
  std::set_new_handler([] {
    if (!CachingAllocator::instance().release_cached()) {
      throw std::bad_alloc();
    }
  });
}

}  // namespace lockstep::train
