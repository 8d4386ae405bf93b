#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

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

// What comes of one part, in its place in the file. libcurl hands it over in
// small pieces; a write of each would pay for the file's lock every time.
class PartWriter {
 public:
  // One writer at a time has `turn`: the kernel lets in one a file, and those
  // that wait in it spin while there is something to receive.
  PartWriter(
      std::mutex& turn,
      int file,
      const os::Path& path,
      uint64_t offset,
      uint64_t size)
      : turn_(turn),
        file_(file),
        path_(path),
        offset_(offset),
        size_(size),
        buffer_(std::make_unique_for_overwrite<char[]>(kBuffer)) {}

  // An error too when more comes than the part has.
  Result<void> add(std::string_view bytes) {
    if (written_ + held_ + bytes.size() > size_) {
      return Error(
          ErrorCode::kUnavailable,
          "the server sends more than the range it was asked for");
    }
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), kBuffer - held_);
      std::memcpy(buffer_.get() + held_, bytes.data(), count);
      held_ += count;
      bytes.remove_prefix(count);
      if (held_ == kBuffer) {
        LOCKSTEP_TRY(flush());
      }
    }
    return {};
  }
  Result<void> flush() {
    const std::string_view bytes(buffer_.get(), held_);
    {
      const std::lock_guard lock(turn_);
      LOCKSTEP_TRY(write_at(file_, path_, offset_ + written_, bytes));
    }
    crc_ = crc32c(bytes, crc_);
    written_ += held_;
    held_ = 0;
    return {};
  }
  void rewind() {
    written_ = 0;
    held_ = 0;
    crc_ = 0;
  }
  uint64_t written() const { return written_; }
  uint32_t crc() const { return crc_; }

 private:
  static constexpr size_t kBuffer = size_t{256} << 10;  // stays in the cache

  std::mutex& turn_;
  int file_;
  const os::Path& path_;
  uint64_t offset_;
  uint64_t size_;
  std::unique_ptr<char[]> buffer_;
  size_t held_ = 0;
  uint64_t written_ = 0;
  uint32_t crc_ = 0;
};

// A large object into <to>.part, part by part at their places. What is done
// stands in <to>.part.mark: which object and version, then a line a part.
class Downloader {
 public:
  Downloader(
      S3::State& s3,
      const S3Object& object,
      const S3Address& from,
      const os::Path& to,
      const TransferOptions& options)
      : s3_(s3),
        object_(object),
        from_(from),
        to_(to),
        options_(options),
        part_(to.string() + ".part"),
        mark_(to.string() + ".part.mark"),
        part_size_(s3.options.part_size),
        done_((object.size + part_size_ - 1) / part_size_),
        crcs_(done_.size()) {}

  Result<Transferred> run();

 private:
  std::string mark_head() const {
    return fmt::format(
        "{}\n{}\n{} {}\n",
        uri_encode(from_.to_string()),
        object_.etag,
        object_.size,
        part_size_);
  }
  Result<void> open();
  Result<void> read_mark();
  Result<void> fetch_part(size_t index);
  Result<void> note_done(size_t index, uint64_t bytes);
  Result<void> check();
  uint64_t offset_of(size_t index) const { return index * part_size_; }
  uint64_t size_of(size_t index) const {
    return std::min(part_size_, object_.size - offset_of(index));
  }

  S3::State& s3_;
  const S3Object& object_;
  const S3Address& from_;
  const os::Path& to_;
  const TransferOptions& options_;
  os::Path part_;
  os::Path mark_;
  uint64_t part_size_;
  std::vector<char> done_;
  std::vector<uint32_t> crcs_;
  os::Descriptor file_;
  os::Descriptor mark_file_;
  std::mutex write_mutex_;
  std::mutex mutex_;  // of the mark and the progress
  uint64_t there_ = 0;
  uint64_t moved_ = 0;
};

Result<void> Downloader::read_mark() {
  const auto text = os::real_files().read(mark_);
  const std::string head = mark_head();
  if (!text || !text->starts_with(head)) {
    return {};
  }
  std::string_view rest = std::string_view(*text).substr(head.size());
  // A last line without its end was being written: it does not count.
  for (size_t end = rest.find('\n'); end != std::string_view::npos;
       end = rest.find('\n')) {
    size_t index = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + end, index);
    if (parsed.ec == std::errc() && index < done_.size()) {
      done_[index] = 1;
    }
    rest.remove_prefix(end + 1);
  }
  // Read again: after a loss of power the mark may know more than the file.
  return run_workers(
      done_.size(), s3_.options.workers, [&](size_t index) -> Result<void> {
        if (done_[index] == 0) {
          return {};
        }
        const auto buffer =
            std::make_unique_for_overwrite<char[]>(size_of(index));
        LOCKSTEP_TRY(read_at(
            file_.get(),
            part_,
            offset_of(index),
            {buffer.get(), size_of(index)}));
        crcs_[index] = crc32c({buffer.get(), size_of(index)});
        return {};
      });
}

Result<void> Downloader::open() {
  file_ =
      os::Descriptor(::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  struct stat facts{};
  if (!file_ || ::fstat(file_.get(), &facts) != 0) {
    return os_error(fmt::format("cannot write {}", part_.string()), errno);
  }
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format("another process is fetching {}", part_.string()))
        .with_retry();
  }
  if (static_cast<uint64_t>(facts.st_size) == object_.size) {
    LOCKSTEP_TRY(read_mark());
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(object_.size)) != 0) {
    return os_error(fmt::format("cannot write {}", part_.string()), errno);
  }
  for (size_t i = 0; i < done_.size(); ++i) {
    there_ += done_[i] != 0 ? size_of(i) : 0;
  }
  // Written anew, so that a line that was cut cannot become another number.
  std::string text = mark_head();
  for (size_t i = 0; i < done_.size(); ++i) {
    text += done_[i] != 0 ? fmt::format("{}\n", i) : "";
  }
  LOCKSTEP_TRY(os::real_files().write_atomic(mark_, text));
  mark_file_ =
      os::Descriptor(::open(mark_.c_str(), O_WRONLY | O_CLOEXEC | O_APPEND));
  if (!mark_file_) {
    return os_error(fmt::format("cannot write {}", mark_.string()), errno);
  }
  return {};
}

Result<void> Downloader::note_done(size_t index, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::string line = fmt::format("{}\n", index);
  if (::write(mark_file_.get(), line.data(), line.size()) < 0) {
    return os_error(fmt::format("cannot write {}", mark_.string()), errno);
  }
  moved_ += bytes;
  if (options_.progress && !options_.progress(there_ + moved_, object_.size)) {
    return Error(
        ErrorCode::kInterrupted,
        fmt::format(
            "stopped; {} of {} bytes are kept", there_ + moved_, object_.size));
  }
  return {};
}

Result<void> Downloader::fetch_part(size_t index) {
  if (done_[index] != 0) {
    return {};
  }
  const uint64_t begin = offset_of(index);
  const uint64_t size = size_of(index);
  PartWriter writer(write_mutex_, file_.get(), part_, begin, size);
  std::optional<Error> failed;
  auto reply = s3_.get(
      from_,
      fmt::format("bytes={}-{}", begin, begin + size - 1),
      object_.etag,
      [&](std::string_view bytes) {
        if (auto added = writer.add(bytes); !added) {
          failed = std::move(added.error());
          return false;
        }
        return true;
      },
      [&] { writer.rewind(); });
  if (failed) {
    return std::move(*failed);
  }
  if (!reply) {
    return std::move(reply.error());
  }
  LOCKSTEP_TRY(writer.flush());
  if (writer.written() != size) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format(
                   "{} of {} bytes of a part came", writer.written(), size))
        .with_retry();
  }
  crcs_[index] = writer.crc();
  return note_done(index, size);
}

Result<void> Downloader::check() {
  const auto promised = object_.metadata.find(kCrcName);
  std::string found;
  std::string wanted;
  if (promised != object_.metadata.end()) {
    uint32_t whole = 0;
    for (size_t i = 0; i < crcs_.size(); ++i) {
      whole = crc32c_join(whole, crcs_[i], size_of(i));
    }
    found = crc_text(whole);
    wanted = promised->second;
  } else if (is_md5(object_.etag) && !object_.metadata.contains("encrypted")) {
    LOCKSTEP_ASSIGN(
        const auto checksum, file_checksum(part_, ChecksumKind::kMd5));
    found = checksum.hex;
    wanted = object_.etag;
  }
  if (found == wanted) {
    return {};
  }
  return Error(
      ErrorCode::kCorrupt,
      fmt::format(
          "what came is not what was stored: its checksum is {} instead of {}",
          found,
          wanted));
}

Result<Transferred> Downloader::run() {
  LOCKSTEP_TRY(open());
  LOCKSTEP_TRY(
      run_workers(done_.size(), s3_.options.workers, [&](size_t index) {
        return fetch_part(index);
      }));
  if (auto checked = check(); !checked) {
    (void)os::real_files().remove(part_);
    (void)os::real_files().remove(mark_);
    // Halves that do not fit are no fault of the store's.
    return there_ > 0 ? std::move(checked.error()).with_retry()
                      : std::move(checked.error());
  }
  if (std::rename(part_.c_str(), to_.c_str()) != 0) {
    return os_error(fmt::format("cannot rename to {}", to_.string()), errno);
  }
  (void)os::real_files().remove(mark_);
  return Transferred{1, object_.size, moved_, 0, object_.etag};
}

}  // namespace

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

Result<Transferred> S3::State::download(
    const S3Object& object,
    const S3Address& from,
    const os::Path& to,
    const TransferOptions& transfer) {
  const std::string what =
      fmt::format("fetching {} to {}", from.to_string(), to.string());
  if (to.has_parent_path()) {
    LOCKSTEP_TRY(
        os::real_files().make_directories(to.parent_path()).with_context(what));
  }
  if (object.size <= options.part_size) {
    S3Object found;
    auto bytes = get_checked(from, found);
    if (!bytes) {
      return std::move(bytes.error()).with_context(what);
    }
    LOCKSTEP_TRY(place_file(to, *bytes).with_context(what));
    if (transfer.progress && !transfer.progress(found.size, found.size)) {
      return Error(ErrorCode::kInterrupted, what + ": stopped");
    }
    return Transferred{1, found.size, found.size, 0, found.etag};
  }
  S3Object now = object;
  for (int attempt = 1;; ++attempt) {
    auto done = Downloader(*this, now, from, to, transfer).run();
    if (done) {
      return done;
    }
    // Another version took its place, or old halves did not fit.
    const bool again =
        done.error().code() == ErrorCode::kExists ||
        (done.error().code() == ErrorCode::kCorrupt && done.error().retry());
    if (!again || attempt == 3) {
      return std::move(done.error()).with_context(what);
    }
    LOCKSTEP_ASSIGN(now, head(from));
    if (now.size <= options.part_size) {
      return download(now, from, to, transfer);
    }
  }
}

}  // namespace lockstep::fetch
