#pragma once

// Memory that the ranks of a host see at once. Each rank owns one Memory for
// life: a memfd that grows and is mapped over a large reservation, so that
// pointers into it never move and the size of /dev/shm never matters. Peers
// map it from its descriptor (MappedMemory). It outlives communicators: give
// it to the next generation and Buffers stay where they are. Thread-safe.
// Throws CollectiveError when the system refuses memory.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/collective/communicator.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::collective {

// Another's or one's own memory file, mapped shared; unmapped when destroyed.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(int descriptor, size_t reserve);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();
  std::byte* data() const { return data_; }
  size_t reserve() const { return reserve_; }

 private:
  std::byte* data_ = nullptr;
  size_t reserve_ = 0;
};

// An anonymous memory file of `bytes` zeros.
os::Descriptor make_memory_file(const std::string& name, size_t bytes);

class Memory : public std::enable_shared_from_this<Memory> {
 public:
  // `reserve` bounds what can ever be allocated; 0: the machine's memory.
  static std::shared_ptr<Memory> create(size_t reserve = 0);

  // Zeroed, 64-byte aligned; 4096 from a page on.
  Buffer allocate(size_t bytes);

  // The same without zeros, and given back by hand: for staging.
  size_t take(size_t bytes);
  void give(size_t offset);

  // The offset of a range that lies wholly inside, else nothing.
  std::optional<size_t> find(const void* data, size_t bytes) const {
    const auto at = static_cast<const std::byte*>(data);
    if (at >= mapping_.data() &&
        at + bytes <= mapping_.data() + mapping_.reserve()) {
      return static_cast<size_t>(at - mapping_.data());
    }
    return std::nullopt;
  }

  std::byte* data() const { return mapping_.data(); }
  size_t reserve() const { return mapping_.reserve(); }
  int descriptor() const { return file_.get(); }

 private:
  Memory(os::Descriptor file, size_t reserve);
  size_t take_locked(size_t bytes, bool& dirty);

  os::Descriptor file_;
  MappedMemory mapping_;
  std::mutex mutex_;
  size_t grown_ = 0;                 // the file's size
  size_t fresh_ = 0;                 // never given out from here on
  std::map<size_t, size_t> free_;    // offset to size, never touching
  std::map<size_t, size_t> in_use_;  // offset to size
};

}  // namespace lockstep::collective
