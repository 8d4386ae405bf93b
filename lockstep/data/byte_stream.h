#pragma once

// A file's bytes in order, inflated on the way when the file is gzipped (told
// by its content, not its name). One thread. Throws DataError with the file's
// name: cannot be read, ends too early, goes on too long, damaged.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

class ByteStream {
 public:
  explicit ByteStream(const std::string& path);
  ~ByteStream();
  // Fills all of `target`.
  void read(std::span<uint8_t> target);
  // Throws when bytes are left over, or when the gzip trailer does not match.
  void expect_end();
  const std::string& path() const { return path_; }

 private:
  struct Inflater;
  size_t read_some(std::span<uint8_t> target);
  std::string path_;
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
  uint64_t delivered_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// A whole file; DataError names it when it cannot be read or is larger than
// `limit` bytes.
std::vector<uint8_t> read_file(
    const std::string& path,
    uint64_t limit = uint64_t{1} << 32);

}  // namespace lockstep::data
