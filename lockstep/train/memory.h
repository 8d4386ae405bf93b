#pragma once

// How much memory a piece of work takes at its peak, and how much this rank
// may have: of the GPU it computes on, or of this machine (its cgroup's limit
// counted). One thread; reset() hands back what allocators keep.

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <memory>

#include "lockstep/base/units.h"

namespace lockstep::train {

class MemoryMeter {
 public:
  virtual ~MemoryMeter() = default;
  // Gives back cached memory and begins a new peak.
  virtual void reset() = 0;
  // The most in use since reset(); all of this process counts.
  virtual uint64_t peak() = 0;
  // What this process may use in all; fixed when the meter is made.
  virtual uint64_t limit() const = 0;
};

// `sharers`: ranks that share the memory, each gets an equal part of what is
// free. `limit` lowers what this rank may have; 0 bytes: no such wish.
std::unique_ptr<MemoryMeter>
make_memory_meter(c10::Device device, int sharers, Bytes limit);

// Whether LibTorch, its allocator or the C++ library ran out of memory.
bool is_out_of_memory(const std::exception& failure);

}  // namespace lockstep::train
