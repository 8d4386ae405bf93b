#pragma once

// Checkpoint files: safetensors, written atomically, read by mapping. No
// LibTorch here: tensors are names, types, shapes and bytes. The reader checks
// everything before it hands out a byte (header length, JSON, types, shapes
// against offsets, holes and overlaps, file size) and never crashes on a
// corrupt file: the error names the file and what is wrong. What we write
// carries checksums of its data and its header, so a flipped bit is found too.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::record {

struct TensorView {
  std::string name;
  // The format's names: F64 F32 F16 BF16 F8_E5M2 F8_E4M3 F8_E8M0 C64, I64 I32
  // I16 I8, U64 U32 U16 U8, BOOL.
  std::string dtype;
  std::vector<int64_t> shape;  // empty: a scalar
  // Row-major, little-endian. A file of another writer may place it anywhere:
  // copy it, do not cast the pointer.
  std::span<const std::byte> bytes;
};

// Metadata values are strings (the format's rule).
using Metadata = std::map<std::string, std::string>;

// Temporary name, fsync, rename: the old file survives any failure. Bytes go
// straight from the views to the file; wide types come first, so that each
// tensor is aligned to its element. Names are unique UTF-8.
Result<void> write_safetensors(
    os::FileSystem& files,
    const os::Path& path,
    const std::vector<TensorView>& tensors,
    const Metadata& metadata);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const os::Path& path);
  // Views into the mapping, in the order of the file: valid while this lives.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(const std::string& name) const;
  const Metadata& metadata() const { return metadata_; }  // not the checksum

 private:
  Result<void> check_sum();
  explicit SafetensorsFile(os::MappedFile file) : file_(std::move(file)) {}
  os::MappedFile file_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

// The header of a file given as bytes: what open() uses, and what is fuzzed.
Result<void> parse_safetensors(
    std::span<const std::byte> bytes,
    std::vector<TensorView>& tensors,
    Metadata& metadata);

size_t dtype_size(const std::string& dtype);  // 0: unknown

}  // namespace lockstep::record
