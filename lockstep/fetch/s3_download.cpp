#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/file_bytes.h"
#include "lockstep/fetch/part_plan.h"
#include "lockstep/fetch/part_writer.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

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
        plan_{object.size, s3.options.part_size},
        done_(plan_.count()),
        crcs_(plan_.count()) {}

  Result<Transferred> run();

 private:
  std::string mark_head() const {
    return fmt::format(
        "{}\n{}\n{} {}\n",
        uri_encode(from_.to_string()),
        object_.etag,
        object_.size,
        plan_.part_size);
  }
  Result<void> open();
  Result<void> read_mark();
  Result<void> fetch_part(size_t index);
  Result<void> note_done(size_t index, uint64_t bytes);
  Result<void> check();

  S3::State& s3_;
  const S3Object& object_;
  const S3Address& from_;
  const os::Path& to_;
  const TransferOptions& options_;
  os::Path part_;
  os::Path mark_;
  PartPlan plan_;
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
            std::make_unique_for_overwrite<char[]>(plan_.size_of(index));
        LOCKSTEP_TRY(read_at(
            file_.get(),
            part_,
            plan_.offset_of(index),
            {buffer.get(), plan_.size_of(index)}));
        crcs_[index] = crc32c({buffer.get(), plan_.size_of(index)});
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
    there_ += done_[i] != 0 ? plan_.size_of(i) : 0;
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
  const uint64_t begin = plan_.offset_of(index);
  const uint64_t size = plan_.size_of(index);
  PartWriter writer(write_mutex_, file_.get(), part_, begin, size);
  auto reply = s3_.get_into(
      from_,
      fmt::format("bytes={}-{}", begin, begin + size - 1),
      object_.etag,
      writer,
      [&] { writer.rewind(); });
  if (writer.failed()) {
    return std::move(*writer.failed());
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
      whole = crc32c_join(whole, crcs_[i], plan_.size_of(i));
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
