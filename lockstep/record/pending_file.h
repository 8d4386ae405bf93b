#pragma once

// A file that grows by whole records even when the disk fills up halfway
// through one: what landed is taken off the front of what waits, so that the
// next try goes on exactly there. One writer, one thread.

#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::record {

class PendingFile {
 public:
  static Result<PendingFile> open(os::FileSystem& files, const os::Path& path);
  // Adds to what waits; nothing is written yet.
  void add(std::string_view text) { waiting_ += text; }
  size_t waiting() const { return waiting_.size(); }
  // Appends all that waits. After an error the rest still waits.
  Result<void> drain();
  Result<void> sync() { return appender_->sync(); }
  const os::Path& path() const { return path_; }

 private:
  PendingFile(os::FileSystem& files, os::Path path)
      : files_(&files), path_(std::move(path)) {}
  os::FileSystem* files_;
  os::Path path_;
  std::unique_ptr<os::Appender> appender_;
  uint64_t size_ = 0;  // of the file, as far as we wrote it
  std::string waiting_;
};

}  // namespace lockstep::record
