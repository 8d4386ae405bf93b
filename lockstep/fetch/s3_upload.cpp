#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr uint64_t kMostParts = 10000;

// An upload that was begun, on this machine, for this object. Locked as long
// as its uploader lives; without the lock (another one has it) nothing is
// remembered.
class UploadJournal {
 public:
  struct Entry {
    std::string upload_id;
    uint64_t size = 0;
    uint64_t part_size = 0;
    std::string crc;
  };

  UploadJournal(const os::Path& folder, const std::string& object) {
    if (folder.empty() ||
        !os::real_files().make_directories(folder / "uploads")) {
      return;
    }
    path_ = folder / "uploads" / sha256_hex(object).substr(0, 32);
    file_ = os::Descriptor(
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (file_ && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      file_.reset();
    }
  }

  bool keeps() const { return static_cast<bool>(file_); }

  std::optional<Entry> read() const {
    if (!file_) {
      return std::nullopt;
    }
    std::string text(4096, '\0');
    const ssize_t count = ::pread(file_.get(), text.data(), text.size(), 0);
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    const auto found = nlohmann::json::parse(text, nullptr, false);
    if (!found.is_object() || found.value("version", 0) != 1) {
      return std::nullopt;
    }
    return Entry{
        found.value("upload", ""),
        found.value("size", uint64_t{0}),
        found.value("part_size", uint64_t{0}),
        found.value("crc32c", "")};
  }

  void write(const Entry& entry) {
    const std::string text = nlohmann::json{
        {"version", 1},
        {"upload", entry.upload_id},
        {"size", entry.size},
        {"part_size", entry.part_size},
        {"crc32c", entry.crc}}.dump();
    if (file_ && (::ftruncate(file_.get(), 0) != 0 ||
                  ::pwrite(file_.get(), text.data(), text.size(), 0) < 0)) {
      forget();  // a full disk: the next call starts anew
    }
  }

  void forget() {
    if (file_) {
      ::unlink(path_.c_str());
      file_.reset();
    }
  }

 private:
  os::Path path_;
  os::Descriptor file_;
};

class Uploader {
 public:
  Uploader(
      S3::State& s3,
      const os::Path& from,
      const S3Address& to,
      const TransferOptions& options)
      : s3_(s3),
        from_(from),
        to_(to),
        options_(options),
        journal_(
            s3.options.state,
            s3.request("PUT", "PutObject", to).endpoint + " " +
                to.to_string()) {}

  Result<Transferred> run();

 private:
  Result<void> open();
  Result<void> check_unchanged() const;
  Result<Transferred> in_one_piece();
  Result<Transferred> in_parts();
  Result<void> begin();
  Result<void> find_parts(const std::string& upload_id);
  Result<void> read_crcs();
  Result<void> send_part(size_t index);
  Result<std::string> complete();
  void give_up(const Error& error);
  Result<void> abort(const std::string& upload_id);
  uint64_t offset_of(size_t index) const { return index * part_size_; }
  uint64_t size_of(size_t index) const {
    return std::min(part_size_, size_ - offset_of(index));
  }
  Result<void> moved(uint64_t bytes);
  // Kept for the next part: fresh memory costs as much as a copy.
  class PartBuffer {
   public:
    explicit PartBuffer(Uploader& owner) : owner_(owner) {
      const std::lock_guard lock(owner.buffers_mutex_);
      if (!owner.buffers_.empty()) {
        bytes_ = std::move(owner.buffers_.back());
        owner.buffers_.pop_back();
      }
      if (!bytes_) {
        bytes_ = std::make_unique_for_overwrite<char[]>(owner.part_size_);
      }
    }
    PartBuffer(const PartBuffer&) = delete;
    ~PartBuffer() {
      const std::lock_guard lock(owner_.buffers_mutex_);
      owner_.buffers_.push_back(std::move(bytes_));
    }
    char* get() const { return bytes_.get(); }

   private:
    Uploader& owner_;
    std::unique_ptr<char[]> bytes_;
  };
  Error changed() const {
    return Error(
        ErrorCode::kAborted,
        fmt::format("{} changed while it was stored", from_.string()));
  }

  S3::State& s3_;
  const os::Path& from_;
  const S3Address& to_;
  const TransferOptions& options_;
  UploadJournal journal_;
  os::Descriptor file_;
  timespec modified_{};
  uint64_t size_ = 0;
  uint64_t part_size_ = 0;
  std::vector<uint32_t> crcs_;
  std::string crc_;
  std::string upload_id_;
  std::vector<std::string> etags_;  // "" while a part is missing
  std::atomic<uint64_t> moved_{0};
  uint64_t there_ = 0;  // bytes of parts that an earlier call had moved
  std::mutex progress_mutex_;
  std::mutex buffers_mutex_;
  std::vector<std::unique_ptr<char[]>> buffers_;
};

Result<void> Uploader::open() {
  file_ = os::Descriptor(::open(from_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts{};
  if (!file_ || ::fstat(file_.get(), &facts) != 0) {
    return os_error(fmt::format("cannot read {}", from_.string()), errno);
  }
  if (!S_ISREG(facts.st_mode)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{} is not a file", from_.string()));
  }
  size_ = static_cast<uint64_t>(facts.st_size);
  modified_ = facts.st_mtim;
  part_size_ = s3_.options.part_size;
  while (size_ > part_size_ * kMostParts) {
    part_size_ *= 2;
  }
  return {};
}

Result<void> Uploader::check_unchanged() const {
  struct stat facts{};
  if (options_.unchanged && (::fstat(file_.get(), &facts) != 0 ||
                             static_cast<uint64_t>(facts.st_size) != size_ ||
                             facts.st_mtim.tv_sec != modified_.tv_sec ||
                             facts.st_mtim.tv_nsec != modified_.tv_nsec)) {
    return changed();
  }
  return {};
}

Result<void> Uploader::moved(uint64_t bytes) {
  const uint64_t now = moved_.fetch_add(bytes) + bytes + there_;
  if (options_.progress) {
    const std::lock_guard lock(progress_mutex_);
    if (!options_.progress(now, size_)) {
      return Error(
          ErrorCode::kInterrupted,
          fmt::format("stopped; {} of {} is stored", now, size_));
    }
  }
  return {};
}

Result<Transferred> Uploader::in_one_piece() {
  const auto buffer = std::make_unique_for_overwrite<char[]>(size_ + 1);
  LOCKSTEP_TRY(read_at(file_.get(), from_, 0, {buffer.get(), size_}));
  LOCKSTEP_TRY(check_unchanged());
  LOCKSTEP_ASSIGN(
      std::string etag,
      s3_.put(to_, {buffer.get(), size_}, options_.condition));
  LOCKSTEP_TRY(moved(size_));
  return Transferred{1, size_, size_, 0, std::move(etag)};
}

// The CRC of every part, and of the whole: it names the content that a broken
// upload belongs to, and goes into the metadata.
Result<void> Uploader::read_crcs() {
  const auto read_one = [&](size_t index) -> Result<void> {
    constexpr uint64_t kPiece = uint64_t{128} << 10;  // stays in the cache
    const auto buffer = std::make_unique_for_overwrite<char[]>(kPiece);
    uint32_t crc = 0;
    for (uint64_t done = 0; done < size_of(index); done += kPiece) {
      const uint64_t count = std::min(kPiece, size_of(index) - done);
      LOCKSTEP_TRY(read_at(
          file_.get(), from_, offset_of(index) + done, {buffer.get(), count}));
      crc = crc32c({buffer.get(), count}, crc);
    }
    crcs_[index] = crc;
    return {};
  };
  LOCKSTEP_TRY(run_workers(crcs_.size(), s3_.options.workers, read_one));
  uint32_t whole = 0;
  for (size_t i = 0; i < crcs_.size(); ++i) {
    whole = crc32c_join(whole, crcs_[i], size_of(i));
  }
  crc_ = crc_text(whole);
  return {};
}

Result<void> Uploader::find_parts(const std::string& upload_id) {
  std::string marker;
  while (true) {
    AwsRequest asked = s3_.request("GET", "ListMultipartUploadParts", to_);
    asked.query = {{"uploadId", upload_id}};
    if (!marker.empty()) {
      asked.query.emplace_back("part-number-marker", marker);
    }
    asked.expect_xml = true;
    LOCKSTEP_ASSIGN(const AwsReply reply, s3_.call(asked, to_));
    LOCKSTEP_ASSIGN(const S3Parts page, read_parts(*reply.xml));
    for (const auto& [number, part] : page.parts) {
      const auto index = static_cast<size_t>(number - 1);
      if (index < etags_.size() && part.size == size_of(index) &&
          etags_[index].empty() && !part.etag.empty()) {
        etags_[index] = part.etag;
        there_ += part.size;
      }
    }
    if (page.next.empty() || page.next == marker) {
      return {};
    }
    marker = page.next;
  }
}

// Goes on with the upload that the journal remembers, or begins one.
Result<void> Uploader::begin() {
  etags_.assign(crcs_.size(), "");
  there_ = 0;
  if (const auto old = journal_.read(); old && !old->upload_id.empty()) {
    const bool same =
        old->size == size_ && old->part_size == part_size_ && old->crc == crc_;
    if (same && find_parts(old->upload_id)) {
      upload_id_ = old->upload_id;
      return {};
    }
    etags_.assign(crcs_.size(), "");
    there_ = 0;
    if (!same) {
      (void)abort(old->upload_id);  // its parts would cost money for ever
    }
  }
  AwsRequest asked = s3_.request("POST", "PutObject", to_);
  asked.query = {{"uploads", ""}};
  asked.headers.emplace_back(fmt::format("x-amz-meta-{}", kCrcName), crc_);
  asked.expect_xml = true;
  LOCKSTEP_ASSIGN(const AwsReply reply, s3_.call(asked, to_));
  LOCKSTEP_ASSIGN(upload_id_, read_upload_id(*reply.xml));
  journal_.write({upload_id_, size_, part_size_, crc_});
  return {};
}

Result<void> Uploader::send_part(size_t index) {
  if (!etags_[index].empty()) {
    return {};
  }
  const uint64_t size = size_of(index);
  const PartBuffer buffer(*this);
  const std::string_view bytes(buffer.get(), size);
  LOCKSTEP_TRY(
      read_at(file_.get(), from_, offset_of(index), {buffer.get(), size}));
  if (crc32c(bytes) != crcs_[index]) {
    return changed();
  }
  AwsRequest asked = s3_.request("PUT", "PutObject", to_);
  asked.query = {
      {"partNumber", std::to_string(index + 1)}, {"uploadId", upload_id_}};
  asked.body = bytes;
  if (s3_.is_https()) {
    asked.headers.emplace_back("Content-MD5", content_md5(bytes));
  }
  LOCKSTEP_ASSIGN(const AwsReply reply, s3_.call(asked, to_));
  etags_[index] = object_of(reply, "").etag;
  return moved(size);
}

Result<std::string> Uploader::complete() {
  const std::string body = write_complete(etags_);
  AwsRequest asked = s3_.request("POST", "PutObject", to_);
  asked.query = {{"uploadId", upload_id_}};
  asked.headers.emplace_back("Content-Type", "application/xml");
  asked.body = body;
  asked.expect_xml = true;
  add_condition(asked, options_.condition);
  LOCKSTEP_ASSIGN(const AwsReply reply, s3_.send(asked, to_));
  if (!reply.fault) {
    std::string etag =
        plain_etag(xml_text(*reply.xml, "CompleteMultipartUploadResult/ETag"));
    if (etag.empty()) {  // radosgw does not tell it here
      LOCKSTEP_ASSIGN(const S3Object there, s3_.head(to_));
      etag = there.etag;
    }
    return etag;
  }
  // The answer to the attempt that did it may have been lost.
  if (reply.attempts > 1) {
    const auto there = s3_.head(to_);
    if (there && there->size == size_ && there->metadata.contains(kCrcName) &&
        there->metadata.at(kCrcName) == crc_) {
      return there->etag;
    }
  }
  return reply.fault->to_error(asked.action, asked.subject);
}

Result<void> Uploader::abort(const std::string& upload_id) {
  AwsRequest asked = s3_.request("DELETE", "AbortMultipartUpload", to_);
  asked.query = {{"uploadId", upload_id}};
  LOCKSTEP_TRY(s3_.call(asked, to_));
  return {};
}

// What may pass later is kept for the next call; all else is taken away.
void Uploader::give_up(const Error& error) {
  const bool later = error.retry() || error.code() == ErrorCode::kInterrupted;
  if (later && journal_.keeps()) {
    return;
  }
  (void)abort(upload_id_);
  journal_.forget();
}

Result<Transferred> Uploader::in_parts() {
  crcs_.resize((size_ + part_size_ - 1) / part_size_);
  LOCKSTEP_TRY(read_crcs());
  if (options_.condition.absent || !options_.condition.etag.empty()) {
    // Told again when the upload completes; asked now, nothing moves in vain.
    const auto there = s3_.head(to_);
    const bool holds = options_.condition.absent
                           ? !there
                           : there && there->etag == options_.condition.etag;
    if (!holds && (there || there.error().code() == ErrorCode::kNotFound)) {
      return Error(
          ErrorCode::kExists,
          fmt::format(
              "{} is not stored: {}",
              to_.to_string(),
              options_.condition.absent ? "there is one already"
                                        : "it is another one by now"));
    }
  }
  for (int attempt = 1;; ++attempt) {
    LOCKSTEP_TRY(begin());
    auto sent =
        run_workers(etags_.size(), s3_.options.workers, [&](size_t index) {
          return send_part(index);
        });
    if (sent) {
      sent = check_unchanged();
    }
    Result<std::string> etag =
        sent ? complete() : Result<std::string>(sent.error());
    if (etag) {
      journal_.forget();
      return Transferred{1, size_, moved_.load(), 0, std::move(*etag)};
    }
    // Somebody else ended the upload: begin another, once.
    const bool gone =
        etag.error().message().find("NoSuchUpload") != std::string::npos;
    if (!gone || attempt == 2) {
      give_up(etag.error());
      return std::move(etag.error());
    }
    journal_.write({});
  }
}

Result<Transferred> Uploader::run() {
  LOCKSTEP_TRY(open());
  if (size_ <= part_size_) {
    return in_one_piece();
  }
  return in_parts();
}

}  // namespace

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

Result<Transferred> S3::State::upload(
    const os::Path& from,
    const S3Address& to,
    const TransferOptions& transfer) {
  if (to.key.empty() || to.key.ends_with('/')) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{} names no object; write s3://BUCKET/KEY", to.to_string()));
  }
  return Uploader(*this, from, to, transfer)
      .run()
      .with_context(
          fmt::format("storing {} as {}", from.string(), to.to_string()));
}

}  // namespace lockstep::fetch
