#pragma once

// Page-aligned blocks of one size that come back when their last holder drops
// them, so that a steady flow of batches allocates nothing. Blocks may outlive
// the pool. Thread-safe.

#include <cstddef>
#include <memory>

namespace lockstep::data {

class BufferPool {
 public:
  // Keeps at most `keep` free blocks; more are given back to the system.
  BufferPool(size_t bytes, size_t keep);
  ~BufferPool();
  std::shared_ptr<void> get();
  size_t bytes() const;
  size_t allocations() const;  // blocks taken from the system so far

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace lockstep::data
