#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"
#include "lockstep/fetch/sha256_pair.h"
#include "lockstep/fetch/upload_journal.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr uint64_t kMostParts = 10000;
constexpr uint64_t kPiece = uint64_t{128} << 10;  // stays in the cache
static_assert(kPiece % Sha256Pair::kBlock == 0);

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
  Result<void> read_checksums();
  Result<void> read_pair(size_t first);
  Result<std::string> part_md5(size_t index) const;
  Result<void> send_part(size_t index);
  Result<std::string> complete();
  void give_up(const Error& error);
  Result<void> abort(const std::string& upload_id);
  uint64_t offset_of(size_t index) const { return index * part_size_; }
  uint64_t size_of(size_t index) const {
    return std::min(part_size_, size_ - offset_of(index));
  }
  Result<void> moved(uint64_t bytes);
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
  std::vector<std::string> hashes_;  // SHA-256, where the payload is signed
  std::string crc_;
  std::string upload_id_;
  std::vector<std::string> etags_;  // "" while a part is missing
  std::atomic<uint64_t> moved_{0};
  uint64_t there_ = 0;  // bytes of parts that an earlier call had moved
  std::mutex progress_mutex_;
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

// Of two parts at once, since two SHA-256 cost little more than one.
Result<void> Uploader::read_pair(size_t first) {
  const bool hash = !s3_.is_https();
  const auto buffer = std::make_unique_for_overwrite<char[]>(2 * kPiece);
  Sha256Pair pair;
  std::array<uint64_t, 2> sizes{};
  for (size_t n = 0; n < 2 && first + n < crcs_.size(); ++n) {
    sizes[n] = size_of(first + n);
  }
  for (uint64_t done = 0; done < sizes[0]; done += kPiece) {
    std::array<std::string_view, 2> pieces;
    for (size_t n = 0; n < 2 && done < sizes[n]; ++n) {
      const uint64_t count = std::min(kPiece, sizes[n] - done);
      char* into = buffer.get() + n * kPiece;
      LOCKSTEP_TRY(read_at(
          file_.get(), from_, offset_of(first + n) + done, {into, count}));
      pieces[n] = {into, count};
      crcs_[first + n] = crc32c(pieces[n], crcs_[first + n]);
    }
    if (hash) {
      pair.update(pieces[0], pieces[1]);
    }
  }
  if (hash) {
    const auto found = pair.finish();
    for (size_t n = 0; n < 2 && first + n < hashes_.size(); ++n) {
      hashes_[first + n] = found[n];
    }
  }
  return {};
}

// The CRC of every part, and of the whole: it names the content that a broken
// upload belongs to, and goes into the metadata. With it the hash that is
// signed while the bytes are in the cache.
Result<void> Uploader::read_checksums() {
  crcs_.assign((size_ + part_size_ - 1) / part_size_, 0);
  hashes_.assign(crcs_.size(), "");
  LOCKSTEP_TRY(run_workers(
      (crcs_.size() + 1) / 2, s3_.options.workers, [&](size_t pair) {
        return read_pair(2 * pair);
      }));
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

// For https, where the signature does not cover the body.
Result<std::string> Uploader::part_md5(size_t index) const {
  const auto buffer = std::make_unique_for_overwrite<char[]>(kPiece);
  Digest digest(ChecksumKind::kMd5);
  for (uint64_t done = 0; done < size_of(index); done += kPiece) {
    const uint64_t count = std::min(kPiece, size_of(index) - done);
    LOCKSTEP_TRY(read_at(
        file_.get(), from_, offset_of(index) + done, {buffer.get(), count}));
    digest.update({buffer.get(), count});
  }
  return content_md5(digest.finish());
}

// Straight from the file into what libcurl sends.
Result<void> Uploader::send_part(size_t index) {
  if (!etags_[index].empty()) {
    return {};
  }
  const uint64_t size = size_of(index);
  std::optional<Error> failed;
  uint32_t crc = 0;
  BodySource source;
  source.size = size;
  source.read = [&](uint64_t offset, std::span<char> into) {
    const auto read =
        read_at(file_.get(), from_, offset_of(index) + offset, into);
    if (!read) {
      failed = read.error();
      return false;
    }
    crc = crc32c({into.data(), into.size()}, offset == 0 ? 0 : crc);
    // The last bytes are held back: the store never has a whole part of which
    // half is of another version.
    if (offset + into.size() == size && crc != crcs_[index]) {
      failed = changed();
      return false;
    }
    return true;
  };
  AwsRequest asked = s3_.request("PUT", "PutObject", to_);
  asked.query = {
      {"partNumber", std::to_string(index + 1)}, {"uploadId", upload_id_}};
  asked.body_source = &source;
  asked.body_sha256 = hashes_[index];
  if (s3_.is_https()) {
    LOCKSTEP_ASSIGN(std::string md5, part_md5(index));
    asked.headers.emplace_back("Content-MD5", std::move(md5));
  }
  auto reply = s3_.call(asked, to_);
  if (failed) {
    return std::move(*failed);
  }
  if (!reply) {
    return std::move(reply.error());
  }
  etags_[index] = object_of(*reply, "").etag;
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
  LOCKSTEP_TRY(read_checksums());
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
