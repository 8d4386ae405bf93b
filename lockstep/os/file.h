#pragma once

// Files behind an interface: what is replaced is written under a temporary
// name, synced and renamed, so a reader sees the old or the new whole. The
// fake keeps files in memory and can be told to run out of space.
// Thread-safe. Errors name the path.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::os {

using Path = std::filesystem::path;

// An open file that grows at its end. Not thread-safe.
class Appender {
 public:
  virtual ~Appender() = default;
  virtual Result<void> append(std::string_view text) = 0;
  virtual Result<void> sync() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::string> read(const Path& path) = 0;
  // Temporary name in the same folder, fsync, rename, fsync of the folder. On
  // any failure the old file is untouched and the temporary one is gone.
  // `parts` are written one after the other.
  virtual Result<void> write_atomic(
      const Path& path,
      std::span<const std::string_view> parts) = 0;
  Result<void> write_atomic(const Path& path, std::string_view content);
  virtual Result<std::unique_ptr<Appender>> open_append(const Path& path) = 0;
  virtual Result<void> make_directories(const Path& path) = 0;
  virtual Result<void> remove(const Path& path) = 0;  // absent: fine
  virtual bool exists(const Path& path) = 0;
  virtual Result<Bytes> size(const Path& path) = 0;
  // Names in a folder, sorted.
  virtual Result<std::vector<std::string>> list(const Path& path) = 0;
  // Of the file system that holds, or would hold, the path.
  virtual Result<Bytes> free_space(const Path& path) = 0;
};

FileSystem& real_files();

// For a secret: mode 0600, renamed, not synced: it ends with its run anyway.
Result<void> write_private(const Path& path, std::string_view content);

class FakeFileSystem : public FileSystem {
 public:
  using FileSystem::write_atomic;
  // After this, writes beyond `left` bytes fail with kNoSpace.
  void set_space(uint64_t left);
  Result<std::string> read(const Path& path) override;
  Result<void> write_atomic(
      const Path& path,
      std::span<const std::string_view> parts) override;
  Result<std::unique_ptr<Appender>> open_append(const Path& path) override;
  Result<void> make_directories(const Path& path) override;
  Result<void> remove(const Path& path) override;
  bool exists(const Path& path) override;
  Result<Bytes> size(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& path) override;
  Result<Bytes> free_space(const Path& path) override;

 private:
  friend class FakeAppender;
  Result<void> grow(const Path& path, std::string_view text);
  std::mutex mutex_;
  std::map<std::string, std::string> files_;
  std::set<std::string> folders_;
  std::optional<uint64_t> space_;
};

// A regular file mapped for reading; unmapped when destroyed. Movable. An
// empty file gives no bytes.
class MappedFile {
 public:
  static Result<MappedFile> open(const Path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::os
