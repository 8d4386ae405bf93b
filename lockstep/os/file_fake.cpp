#include <fmt/format.h>

#include "lockstep/os/file.h"

namespace lockstep::os {
namespace {

std::string key_of(const Path& path) {
  return path.lexically_normal().string();
}

Error absent(const Path& path) {
  return Error(
      ErrorCode::kNotFound,
      fmt::format("cannot read {}: No such file or directory", path.string()));
}

}  // namespace

class FakeAppender : public Appender {
 public:
  FakeAppender(FakeFileSystem& files, Path path)
      : files_(&files), path_(std::move(path)) {}
  Result<void> append(std::string_view text) override {
    std::lock_guard lock(files_->mutex_);
    return files_->grow(path_, text);
  }
  Result<void> sync() override { return {}; }

 private:
  FakeFileSystem* files_;
  Path path_;
};

void FakeFileSystem::set_space(uint64_t left) {
  std::lock_guard lock(mutex_);
  space_ = left;
}

// Like a real disk that fills up: what fits is written, then it fails.
Result<void> FakeFileSystem::grow(const Path& path, std::string_view text) {
  std::string& content = files_[key_of(path)];
  size_t fits = text.size();
  if (space_) {
    fits = std::min<uint64_t>(fits, *space_);
    *space_ -= fits;
  }
  content += text.substr(0, fits);
  if (fits < text.size()) {
    return Error(
        ErrorCode::kNoSpace,
        fmt::format("cannot write {}: No space left on device", path.string()));
  }
  return {};
}

Result<std::string> FakeFileSystem::read(const Path& path) {
  std::lock_guard lock(mutex_);
  auto found = files_.find(key_of(path));
  if (found == files_.end()) {
    return absent(path);
  }
  return found->second;
}

Result<void> FakeFileSystem::write_atomic(
    const Path& path,
    std::span<const std::string_view> parts) {
  std::lock_guard lock(mutex_);
  std::string content;
  for (std::string_view part : parts) {
    content += part;
  }
  // The old file still stands while the new one is written.
  if (space_ && content.size() > *space_) {
    return Error(
        ErrorCode::kNoSpace,
        fmt::format("cannot write {}: No space left on device", path.string()));
  }
  std::string& file = files_[key_of(path)];
  if (space_) {
    *space_ += file.size();
    *space_ -= content.size();
  }
  file = std::move(content);
  return {};
}

Result<std::unique_ptr<Appender>> FakeFileSystem::open_append(
    const Path& path) {
  std::lock_guard lock(mutex_);
  files_.try_emplace(key_of(path));
  return std::make_unique<FakeAppender>(*this, path);
}

Result<void> FakeFileSystem::make_directories(const Path& path) {
  std::lock_guard lock(mutex_);
  for (Path folder = path.lexically_normal(); folder.has_relative_path();
       folder = folder.parent_path()) {
    folders_.insert(folder.string());
  }
  return {};
}

Result<void> FakeFileSystem::remove(const Path& path) {
  std::lock_guard lock(mutex_);
  auto found = files_.find(key_of(path));
  if (found != files_.end()) {
    if (space_) {
      *space_ += found->second.size();
    }
    files_.erase(found);
  }
  folders_.erase(key_of(path));
  return {};
}

bool FakeFileSystem::exists(const Path& path) {
  std::lock_guard lock(mutex_);
  std::string key = key_of(path);
  if (files_.contains(key) || folders_.contains(key)) {
    return true;
  }
  auto inside = files_.lower_bound(key + "/");
  return inside != files_.end() && inside->first.starts_with(key + "/");
}

Result<Bytes> FakeFileSystem::size(const Path& path) {
  LOCKSTEP_ASSIGN(std::string content, read(path));
  return Bytes{content.size()};
}

Result<std::vector<std::string>> FakeFileSystem::list(const Path& path) {
  if (!exists(path)) {
    return absent(path);
  }
  std::lock_guard lock(mutex_);
  std::string prefix = key_of(path) + "/";
  std::set<std::string> names;
  auto add = [&](const std::string& key) {
    if (key.starts_with(prefix)) {
      std::string rest = key.substr(prefix.size());
      names.insert(rest.substr(0, rest.find('/')));
    }
  };
  for (const auto& [key, content] : files_) {
    add(key);
  }
  for (const std::string& key : folders_) {
    add(key);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<Bytes> FakeFileSystem::free_space(const Path&) {
  std::lock_guard lock(mutex_);
  return Bytes{space_.value_or(uint64_t{1} << 40)};
}

}  // namespace lockstep::os
