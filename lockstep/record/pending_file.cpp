#include "lockstep/record/pending_file.h"

#include <utility>

namespace lockstep::record {

Result<PendingFile> PendingFile::open(
    os::FileSystem& files,
    const os::Path& path) {
  PendingFile file(files, path);
  LOCKSTEP_ASSIGN(file.appender_, files.open_append(path));
  if (const auto size = files.size(path)) {
    file.size_ = size->count;
  }
  return file;
}

Result<void> PendingFile::drain() {
  if (waiting_.empty()) {
    return {};
  }
  auto appended = appender_->append(waiting_);
  if (appended) {
    size_ += waiting_.size();
    waiting_.clear();
    return {};
  }
  // A full disk takes part of a write and then fails: ask how much it took.
  const auto size = files_->size(path_);
  if (size && size->count > size_ && size->count - size_ <= waiting_.size()) {
    waiting_.erase(0, size->count - size_);
    size_ = size->count;
  }
  return appended;
}

}  // namespace lockstep::record
