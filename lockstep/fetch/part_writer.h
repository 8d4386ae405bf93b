#pragma once

// What comes of one part of an object, to its place in a file, with its CRC.
// Pieces are gathered in a buffer: a write of each would pay for the file's
// lock every time. One thread. Internal to fetch.

#include <memory>
#include <mutex>
#include <optional>

#include "lockstep/fetch/http_exchange.h"

namespace lockstep::fetch {

class PartWriter : public BodyTarget {
 public:
  // One writer at a time has `turn`: the kernel lets in one a file, and those
  // that wait in it spin while there is something to receive.
  PartWriter(
      std::mutex& turn,
      int file,
      const os::Path& path,
      uint64_t offset,
      uint64_t size);

  std::span<char> room() override;
  bool filled(size_t count) override;
  Result<void> flush();
  void rewind();

  // Why no more was taken: more came than the part has, or the disk is full.
  std::optional<Error>& failed() { return failed_; }
  uint64_t written() const { return written_; }
  uint32_t crc() const { return crc_; }

 private:
  std::mutex& turn_;
  int file_;
  const os::Path& path_;
  uint64_t offset_;
  uint64_t size_;
  std::unique_ptr<char[]> buffer_;
  size_t held_ = 0;
  uint64_t written_ = 0;
  uint32_t crc_ = 0;
  std::optional<Error> failed_;
};

}  // namespace lockstep::fetch
