#include "lockstep/os/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/unfinished.h"

namespace lockstep::os {
namespace {

Result<void>
write_whole(int descriptor, std::string_view text, const Path& path) {
  while (!text.empty()) {
    ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Result<void> sync_folder(const Path& file) {
  Path folder = file.parent_path().empty() ? "." : file.parent_path();
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor) {
    return os_error(fmt::format("cannot open {}", folder.string()), errno);
  }
  // Some file systems cannot sync a folder; the rename itself has happened.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return os_error(fmt::format("cannot sync {}", folder.string()), errno);
  }
  return {};
}

Result<void> fill_and_rename(
    Descriptor descriptor,
    const Path& temporary,
    const Path& path,
    std::span<const std::string_view> parts,
    bool durable) {
  for (std::string_view part : parts) {
    LOCKSTEP_TRY(write_whole(descriptor.get(), part, path));
  }
  if (durable && ::fsync(descriptor.get()) != 0) {
    return os_error(fmt::format("cannot sync {}", path.string()), errno);
  }
  // Network file systems and quotas report some failures only here.
  if (::close(descriptor.release()) != 0 && errno != EINTR) {
    return os_error(fmt::format("cannot close {}", path.string()), errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return os_error(fmt::format("cannot replace {}", path.string()), errno);
  }
  return {};
}

// In the names of a process's temporary files.
std::string mark_of(int pid) {
  return fmt::format(".tmp-{}-", pid);
}

Result<void> replace_file(
    const Path& path,
    std::span<const std::string_view> parts,
    mode_t mode,
    bool durable) {
  static std::atomic<uint64_t> counter{0};
  Path temporary = path.parent_path() / fmt::format(
                                            ".{}{}{}",
                                            path.filename().string(),
                                            mark_of(::getpid()),
                                            counter.fetch_add(1));
  Descriptor descriptor(
      ::open(
          temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!descriptor) {
    return os_error(fmt::format("cannot write {}", path.string()), errno);
  }
  auto written =
      fill_and_rename(std::move(descriptor), temporary, path, parts, durable);
  if (!written) {
    ::unlink(temporary.c_str());
    return written;
  }
  return durable ? sync_folder(path) : Result<void>();
}

class RealAppender : public Appender {
 public:
  RealAppender(Descriptor descriptor, Path path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}
  Result<void> append(std::string_view text) override {
    return write_whole(descriptor_.get(), text, path_);
  }
  Result<void> sync() override {
    if (::fdatasync(descriptor_.get()) != 0 && errno != EINVAL) {
      return os_error(fmt::format("cannot sync {}", path_.string()), errno);
    }
    return {};
  }

 private:
  Descriptor descriptor_;
  Path path_;
};

class RealFileSystem : public FileSystem {
 public:
  using FileSystem::write_atomic;

  Result<std::string> read(const Path& path) override {
    Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!descriptor) {
      return os_error(fmt::format("cannot read {}", path.string()), errno);
    }
    // The size is only a hint: files of /proc say 0, others may grow.
    struct stat facts{};
    std::string content;
    if (::fstat(descriptor.get(), &facts) == 0 && S_ISREG(facts.st_mode)) {
      content.reserve(static_cast<size_t>(facts.st_size) + 1);
    }
    char buffer[65536];
    while (true) {
      ssize_t count = ::read(descriptor.get(), buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return os_error(fmt::format("cannot read {}", path.string()), errno);
      }
      if (count == 0) {
        return content;
      }
      content.append(buffer, static_cast<size_t>(count));
    }
  }

  Result<void> write_atomic(
      const Path& path,
      std::span<const std::string_view> parts) override {
    return replace_file(path, parts, 0666, true);
  }

  Result<std::unique_ptr<Appender>> open_append(const Path& path) override {
    Descriptor descriptor(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!descriptor) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    return std::make_unique<RealAppender>(std::move(descriptor), path);
  }

  Result<void> make_directories(const Path& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
      return os_error(
          fmt::format("cannot make folder {}", path.string()), error.value());
    }
    return {};
  }

  Result<void> remove(const Path& path) override {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      return os_error(
          fmt::format("cannot remove {}", path.string()), error.value());
    }
    return {};
  }

  bool exists(const Path& path) override {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }

  Result<Bytes> size(const Path& path) override {
    std::error_code error;
    uint64_t size = std::filesystem::file_size(path, error);
    if (error) {
      return os_error(
          fmt::format("cannot read {}", path.string()), error.value());
    }
    return Bytes{size};
  }

  Result<std::vector<std::string>> list(const Path& path) override {
    std::error_code error;
    std::vector<std::string> names;
    auto entry = std::filesystem::directory_iterator(path, error);
    for (; !error && entry != std::filesystem::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) {
      return os_error(
          fmt::format("cannot list {}", path.string()), error.value());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<Bytes> free_space(const Path& path) override {
    std::error_code ignored;
    Path place = std::filesystem::absolute(path, ignored);
    struct statvfs facts{};
    while (::statvfs(place.c_str(), &facts) != 0) {
      if (errno != ENOENT || place == place.parent_path()) {
        return os_error(
            fmt::format("cannot read the free space of {}", path.string()),
            errno);
      }
      place = place.parent_path();
    }
    return Bytes{static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize};
  }
};

}  // namespace

Result<void> FileSystem::write_atomic(
    const Path& path,
    std::string_view content) {
  return write_atomic(path, std::span<const std::string_view>(&content, 1));
}

FileSystem& real_files() {
  static RealFileSystem files;
  return files;
}

Result<void> write_private(const Path& path, std::string_view content) {
  return replace_file(path, {&content, 1}, 0600, false);
}

Result<MappedFile> MappedFile::open(const Path& path) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  struct stat facts{};
  if (::fstat(descriptor.get(), &facts) != 0) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  if (!S_ISREG(facts.st_mode)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("cannot map {}: not a regular file", path.string()));
  }
  if (facts.st_size == 0) {
    return MappedFile(nullptr, 0);
  }
  auto size = static_cast<size_t>(facts.st_size);
  void* data =
      ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return os_error(fmt::format("cannot map {}", path.string()), errno);
  }
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void remove_unfinished(const Path& folder, int pid) {
  const std::string mark = mark_of(pid);
  std::error_code stop;
  for (std::filesystem::directory_iterator entry(folder, stop), end;
       !stop && entry != end;
       entry.increment(stop)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') && name.find(mark) != std::string::npos) {
      ::unlink(entry->path().c_str());
    }
  }
}

}  // namespace lockstep::os
