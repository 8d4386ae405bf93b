#include "lockstep/data/buffer_pool.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace lockstep::data {

struct BufferPool::Shelf {
  std::mutex mutex;
  size_t bytes = 0;
  size_t keep = 0;
  size_t allocations = 0;
  std::vector<void*> free;

  ~Shelf() {
    for (void* block : free) {
      std::free(block);
    }
  }

  void put_back(void* block) noexcept {
    {
      std::lock_guard lock(mutex);
      if (free.size() < keep) {
        free.push_back(block);  // capacity is reserved: cannot throw
        return;
      }
    }
    std::free(block);
  }
};

BufferPool::BufferPool(size_t bytes, size_t keep)
    : shelf_(std::make_shared<Shelf>()) {
  constexpr size_t kPage = 4096;
  shelf_->bytes = (bytes + kPage - 1) / kPage * kPage;
  shelf_->keep = keep;
  shelf_->free.reserve(keep);
}

BufferPool::~BufferPool() = default;

std::shared_ptr<void> BufferPool::get() {
  void* block = nullptr;
  {
    std::lock_guard lock(shelf_->mutex);
    if (!shelf_->free.empty()) {
      block = shelf_->free.back();
      shelf_->free.pop_back();
    } else {
      ++shelf_->allocations;
    }
  }
  if (block == nullptr) {
    block = std::aligned_alloc(4096, shelf_->bytes);
    if (block == nullptr) {
      throw std::bad_alloc();
    }
  }
  return {block, [shelf = shelf_](void* p) { shelf->put_back(p); }};
}

size_t BufferPool::bytes() const {
  return shelf_->bytes;
}

size_t BufferPool::allocations() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->allocations;
}

}  // namespace lockstep::data
