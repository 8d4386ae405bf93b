#pragma once

// Bytes of a file in order, unpacked on the way when the file is gzipped.
// Internal to fetch. One thread.

#include <memory>
#include <span>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills as much as there is; fewer bytes only at the end. A gzip stream
  // that ends early or fails its checksum is kCorrupt.
  virtual Result<size_t> read(std::span<char> into) = 0;
  virtual bool gzipped() const = 0;
};

// Gzip is recognised by its first bytes.
Result<std::unique_ptr<ByteSource>> open_bytes(const os::Path& path);

}  // namespace lockstep::fetch
