#include "lockstep/reach/far_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/id.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/message.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

bool is_hash(const std::string& text) {
  return text.size() == 64 &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<void>
write_whole(int file, std::string_view text, const os::Path& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

}  // namespace

Result<std::string> hash_field(const json& from, const char* name) {
  LOCKSTEP_ASSIGN(std::string hash, text_field(from, name));
  if (!is_hash(hash)) {
    return Error(ErrorCode::kCorrupt, fmt::format("'{}' is no hash", hash));
  }
  return hash;
}

Result<os::Path> inside(const os::Path& root, const std::string& name) {
  const os::Path path(name);
  bool good = !name.empty() && path.is_relative() &&
              name.find('\0') == std::string::npos;
  for (const os::Path& part : path) {
    good = good && part != ".." && part != "." && !part.empty();
  }
  if (!good) {
    return Error(
        ErrorCode::kPermission,
        fmt::format("'{}' is not a name below {}", name, root.string()));
  }
  return root / path;
}

// The file that pieces go to.
struct FarFiles::Incoming {
  std::string hash;
  uint64_t size = 0;
  uint64_t written = 0;
  os::Path path;
  os::Descriptor file;
  Sha256 digest;
};

FarFiles::FarFiles(os::Path home)
    : home_(std::move(home)),
      session_(to_hex(make_key()).substr(0, 16)),
      hashes_(home_ / "hashes") {}

FarFiles::~FarFiles() {
  std::error_code ignored;
  fs::remove_all(incoming(), ignored);
  hashes_.save();
}

os::Path FarFiles::incoming() const {
  return home_ / "incoming" / session_;
}

os::Path FarFiles::blob(const std::string& hash) const {
  return home_ / "blobs" / hash;
}

Result<json> FarFiles::put(const json& request) {
  LOCKSTEP_ASSIGN(const std::string hash, hash_field(request, "hash"));
  LOCKSTEP_ASSIGN(const uint64_t size, number_field(request, "size"));
  LOCKSTEP_ASSIGN(const uint64_t offset, number_field(request, "offset"));
  LOCKSTEP_ASSIGN(const uint64_t raw, number_field(request, "raw"));
  LOCKSTEP_ASSIGN(const std::string packed, bytes_field(request, "data"));
  if (raw > kPiece || offset + raw > size) {
    return Error(ErrorCode::kCorrupt, "a piece is larger than its file");
  }
  if (offset == 0) {
    LOCKSTEP_TRY(os::real_files().make_directories(incoming()));
    open_ = std::make_unique<Incoming>();
    open_->hash = hash;
    open_->size = size;
    open_->path = incoming() / hash;
    open_->file = os::Descriptor(
        ::open(
            open_->path.c_str(),
            O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
            0666));
    if (!open_->file) {
      return os_error(
          fmt::format("cannot write {}", open_->path.string()), errno);
    }
  }
  if (!open_ || open_->hash != hash || open_->written != offset) {
    return Error(ErrorCode::kCorrupt, "a piece is out of order");
  }
  LOCKSTEP_ASSIGN(const std::string text, decompress(packed, raw));
  LOCKSTEP_TRY(write_whole(open_->file.get(), text, open_->path));
  open_->digest.update(text);
  open_->written += raw;
  if (open_->written < open_->size) {
    return json::object();
  }
  const std::unique_ptr<Incoming> whole = std::move(open_);
  if (whole->digest.finish() != hash) {
    ::unlink(whole->path.c_str());
    return Error(ErrorCode::kAborted, "a file changed while it was sent")
        .with_retry();
  }
  if (request.value("keep", false)) {
    LOCKSTEP_TRY(os::real_files().make_directories(home_ / "blobs"));
    if (::fchmod(whole->file.get(), 0555) != 0 ||
        ::rename(whole->path.c_str(), blob(hash).c_str()) != 0) {
      return os_error(
          fmt::format("cannot keep {}", blob(hash).string()), errno);
    }
  }
  return json::object();
}

Result<json> FarFiles::read(const json& request) {
  LOCKSTEP_ASSIGN(const std::string path, text_field(request, "path"));
  LOCKSTEP_ASSIGN(const uint64_t offset, number_field(request, "offset"));
  LOCKSTEP_ASSIGN(const uint64_t limit, number_field(request, "limit"));
  const os::Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!file || ::fstat(file.get(), &facts) != 0) {
    return os_error(fmt::format("cannot read {}", path), errno);
  }
  std::string data(std::min<uint64_t>(limit, kPiece), '\0');
  const ssize_t count =
      ::pread(file.get(), data.data(), data.size(), static_cast<off_t>(offset));
  if (count < 0) {
    return os_error(fmt::format("cannot read {}", path), errno);
  }
  data.resize(static_cast<size_t>(count));
  return json{
      {"data", to_bytes(data)}, {"size", static_cast<uint64_t>(facts.st_size)}};
}

Result<json> FarFiles::free(const json& request) {
  LOCKSTEP_ASSIGN(
      const Bytes space,
      os::real_files().free_space(request.value("path", home_.string())));
  return json{{"free", space.count}};
}

}  // namespace lockstep::reach
