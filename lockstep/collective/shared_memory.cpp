#include "lockstep/collective/shared_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/check.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace lockstep::collective {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGrow = 4 << 20;
constexpr size_t kSmallestReserve = 64 << 20;

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

size_t physical_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void throw_errno(const std::string& what) {
  throw CollectiveError(fmt::format("{}: {}", what, strerror(errno)));
}

}  // namespace

os::Descriptor make_memory_file(const std::string& name, size_t bytes) {
  os::Descriptor file(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (file.get() < 0) {
    throw_errno("making a memory file");
  }
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno(fmt::format("growing a memory file to {} bytes", bytes));
  }
  return file;
}

MappedMemory::MappedMemory(int descriptor, size_t reserve) {
  void* at = mmap(
      nullptr,
      reserve,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_NORESERVE,
      descriptor,
      0);
  if (at == MAP_FAILED) {
    throw_errno(
        fmt::format(
            "mapping {} of shared memory", format_bytes(Bytes{reserve})));
  }
  data_ = static_cast<std::byte*>(at);
  reserve_ = reserve;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      reserve_(std::exchange(other.reserve_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(reserve_, other.reserve_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) {
    munmap(data_, reserve_);
  }
}

std::shared_ptr<Memory> Memory::create(size_t reserve) {
  os::Descriptor file = make_memory_file("lockstep", 0);
  if (reserve != 0) {
    return std::shared_ptr<Memory>(
        new Memory(std::move(file), round_up(reserve, kPage)));
  }
  // A limit on address space (ulimit -v) may refuse the whole; less will do.
  reserve = round_up(physical_memory(), kGrow);
  for (;; reserve /= 2) {
    try {
      os::Descriptor copy(dup(file.get()));
      return std::shared_ptr<Memory>(
          new Memory(std::move(copy), round_up(reserve, kPage)));
    } catch (const CollectiveError&) {
      if (reserve < kSmallestReserve) {
        throw;
      }
    }
  }
}

Memory::Memory(os::Descriptor file, size_t reserve)
    : file_(std::move(file)), mapping_(file_.get(), reserve) {}

size_t Memory::take_locked(size_t bytes, bool& dirty) {
  const size_t unit = bytes >= kPage ? kPage : 64;
  bytes = round_up(bytes == 0 ? 1 : bytes, unit);
  dirty = true;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    const size_t start = round_up(offset, unit);
    if (start + bytes > offset + size) {
      continue;
    }
    free_.erase(it);
    if (start > offset) {
      free_.emplace(offset, start - offset);
    }
    if (start + bytes < offset + size) {
      free_.emplace(start + bytes, offset + size - start - bytes);
    }
    in_use_.emplace(start, bytes);
    return start;
  }
  dirty = false;
  const size_t start = round_up(fresh_, unit);
  if (start + bytes > mapping_.reserve()) {
    throw CollectiveError(
        fmt::format(
            "shared memory is full: {} asked, {} of {} in use",
            format_bytes(Bytes{bytes}),
            format_bytes(Bytes{fresh_}),
            format_bytes(Bytes{mapping_.reserve()})));
  }
  if (start + bytes > grown_) {
    size_t grown = round_up(start + bytes, kGrow);
    grown = grown > mapping_.reserve() ? mapping_.reserve() : grown;
    if (ftruncate(file_.get(), static_cast<off_t>(grown)) != 0) {
      throw_errno("growing shared memory");
    }
    grown_ = grown;
  }
  if (start > fresh_) {
    free_.emplace(fresh_, start - fresh_);
  }
  fresh_ = start + bytes;
  in_use_.emplace(start, bytes);
  return start;
}

size_t Memory::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  bool dirty = false;
  return take_locked(bytes, dirty);
}

void Memory::give(size_t offset) {
  const std::lock_guard lock(mutex_);
  const auto used = in_use_.find(offset);
  LOCKSTEP_CHECK(used != in_use_.end());
  size_t size = used->second;
  in_use_.erase(used);
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

Buffer Memory::allocate(size_t bytes) {
  bool dirty = false;
  size_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    offset = take_locked(bytes, dirty);
  }
  std::byte* at = data() + offset;
  if (dirty) {
    std::memset(at, 0, bytes);
  } else if (bytes >= kPage) {
    // Pages now, not one by one inside the first reduction; best effort.
    madvise(at, bytes, MADV_POPULATE_WRITE);
  }
  auto self = shared_from_this();
  return Buffer(
      std::shared_ptr<void>(at, [self, offset](void*) { self->give(offset); }),
      bytes);
}

}  // namespace lockstep::collective
