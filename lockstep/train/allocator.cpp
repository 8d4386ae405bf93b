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
  // `bytes` (whole pages) from the start of a huge page on; null: no memory.
  // What the alignment takes more goes back at once: limits count what is
  // mapped.
  static void* map_aligned(size_t bytes) {
    void* raw = mmap(
        nullptr,
        bytes + kHugePage,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    if (raw == MAP_FAILED) {
      return nullptr;
    }
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t start = round_up(address, kHugePage);
    const size_t before = start - address;
    if (before > 0) {
      munmap(raw, before);
    }
    if (before < kHugePage) {
      munmap(reinterpret_cast<void*>(start + bytes), kHugePage - before);
    }
    return reinterpret_cast<void*>(start);
  }

  bool give_back() {
    bool any = false;
    for (auto& [bytes, cached] : free_) {
      for (void* data : cached) {
        munmap(data, bytes);
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
    void* data = map_aligned(bytes);
    if (data == nullptr) {
      // Blocks of other sizes may hold what is lacking.
      give_back();
      data = map_aligned(bytes);
    }
    if (data == nullptr) {
      throw std::bad_alloc();
    }
    madvise(data, bytes, MADV_HUGEPAGE);
    blocks_[data] = bytes;
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
        self.free_[found->second].push_back(data);
        return;
      }
    }
    free(data);
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, size_t> blocks_;
};

}  // namespace

void join_freed_memory(c10::Device device) {
  const bool told = std::getenv("PYTORCH_ALLOC_CONF") != nullptr ||
                    std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr;
  if (device.is_cuda() && !told) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  }
}

// Eighths of a power of two: at most 12% is lost, and sizes meet again. Whole
// pages.
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
