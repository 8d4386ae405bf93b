#pragma once

// Checkpoint files: safetensors, written atomically, read by mapping. No
// LibTorch here: tensors are names, types, shapes and bytes. The reader checks
// everything before it hands out a byte (header length, JSON, types, shapes
// against offsets, holes and overlaps, file size) and never crashes on a
// corrupt file: the error names the file and what is wrong.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::record {

struct TensorView {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F64", "F16", "I64", "I32", "U8", "BOOL"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major
};

// Metadata values are strings (the format's rule).
using Metadata = std::map<std::string, std::string>;

// Temporary name, fsync, rename: the old file survives any failure.
Result<void> write_safetensors(
    os::FileSystem& files,
    const os::Path& path,
    const std::vector<TensorView>& tensors,
    const Metadata& metadata);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const os::Path& path);
  // Views into the mapping: valid while this object lives.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(const std::string& name) const;
  const Metadata& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(os::MappedFile file) : file_(std::move(file)) {}
  os::MappedFile file_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
};

// The header of a file given as bytes: what open() uses, and what is fuzzed.
Result<void> parse_safetensors(
    std::span<const std::byte> bytes,
    std::vector<TensorView>& tensors,
    Metadata& metadata);

size_t dtype_size(const std::string& dtype);  // 0: unknown

}  // namespace lockstep::record
