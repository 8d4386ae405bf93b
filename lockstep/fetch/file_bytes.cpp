#include "lockstep/fetch/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {

Result<void>
read_at(int file, const os::Path& path, uint64_t offset, std::span<char> into) {
  for (size_t done = 0; done < into.size();) {
    const ssize_t count = ::pread(
        file,
        into.data() + done,
        into.size() - done,
        static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return os_error(fmt::format("cannot read {}", path.string()), errno);
    }
    if (count == 0) {
      return Error(
          ErrorCode::kAborted,
          fmt::format("{} became shorter while it was read", path.string()));
    }
    done += static_cast<size_t>(count);
  }
  return {};
}

Result<void> write_at(
    int file,
    const os::Path& path,
    uint64_t offset,
    std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return os_error(
          fmt::format("cannot write {}", path.string()),
          count < 0 ? errno : ENOSPC);
    }
    offset += static_cast<uint64_t>(count);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

Result<void> place_file(const os::Path& path, std::string_view bytes) {
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = fmt::format(
      "{}.tmp-{}-{}", path.string(), ::getpid(), counter.fetch_add(1));
  {
    const os::Descriptor file(
        ::open(
            temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    if (auto written = write_at(file.get(), path, 0, bytes); !written) {
      ::unlink(temporary.c_str());
      return written;
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    return os_error(fmt::format("cannot write {}", path.string()), reason);
  }
  return {};
}

}  // namespace lockstep::fetch
