#pragma once

// Files by content: SHA-256, a memory of hashes, and compression on the way.
// A Sha256 and a HashMemory are used by one thread.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  ~Sha256();
  void update(std::string_view bytes);
  // Once, at the end: 64 hexadecimal digits.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_of(std::string_view bytes);
Result<std::string> sha256_of_file(const os::Path& path);

// Hashes remembered by path, size, inode and time of change. A file that was
// changed within the last two seconds is not remembered: it may change again
// within one tick of the clock. A memory that cannot be read or written costs
// time only.
class HashMemory {
 public:
  explicit HashMemory(os::Path file);
  Result<std::string> hash(const os::Path& path);
  // Writes what is new; replaces the file whole.
  void save();

 private:
  struct Entry {
    std::string stamp;
    std::string hash;
  };
  os::Path file_;
  std::map<std::string, Entry> entries_;
  bool changed_ = false;
};

// zstd at its quickest.
std::string compress(std::string_view bytes);
// kCorrupt when it is not exactly `size` bytes.
Result<std::string> decompress(std::string_view bytes, size_t size);
// As gzip -1 writes it.
Result<std::string> gzip(std::string_view bytes);

// Of lockstep on this machine: $LOCKSTEP_HOME, else ~/.cache/lockstep.
os::Path lockstep_home();

}  // namespace lockstep::reach
