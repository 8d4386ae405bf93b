#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/file_bytes.h"
#include "lockstep/fetch/multipart.h"
#include "lockstep/fetch/part_plan.h"
#include "lockstep/fetch/part_sums.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/upload_journal.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr uint64_t kMostParts = 10000;

class Uploader {
 public:
  Uploader(
      S3::State& s3,
      const os::Path& from,
      const S3Address& to,
      const TransferOptions& options)
      : s3_(s3), from_(from), to_(to), options_(options) {}

  Result<Transferred> run();

 private:
  Result<void> open();
  Result<void> check_unchanged() const;
  Result<Transferred> in_one_piece();
  Result<Transferred> in_parts();
  Result<void> check_condition();
  Result<void> begin();
  bool goes_on_with(const UploadJournal::Entry& old);
  Result<void> send_part(size_t index);
  void give_up(const Error& error);
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
  UploadJournal journal_;  // of one in parts
  os::Descriptor file_;
  timespec modified_{};
  PartPlan plan_;
  PartSums sums_;
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
  plan_.size = static_cast<uint64_t>(facts.st_size);
  modified_ = facts.st_mtim;
  plan_.part_size = s3_.options.part_size;
  while (plan_.size > plan_.part_size * kMostParts) {
    plan_.part_size *= 2;
  }
  return {};
}

Result<void> Uploader::check_unchanged() const {
  struct stat facts{};
  if (options_.unchanged &&
      (::fstat(file_.get(), &facts) != 0 ||
       static_cast<uint64_t>(facts.st_size) != plan_.size ||
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
    if (!options_.progress(now, plan_.size)) {
      return Error(
          ErrorCode::kInterrupted,
          fmt::format("stopped; {} of {} is stored", now, plan_.size));
    }
  }
  return {};
}

Result<Transferred> Uploader::in_one_piece() {
  const auto buffer = std::make_unique_for_overwrite<char[]>(plan_.size + 1);
  LOCKSTEP_TRY(read_at(file_.get(), from_, 0, {buffer.get(), plan_.size}));
  LOCKSTEP_TRY(check_unchanged());
  LOCKSTEP_ASSIGN(
      std::string etag,
      s3_.put(to_, {buffer.get(), plan_.size}, options_.condition));
  LOCKSTEP_TRY(moved(plan_.size));
  return Transferred{1, plan_.size, plan_.size, 0, std::move(etag)};
}

// Whether the store still has what the journal remembers, of this content.
bool Uploader::goes_on_with(const UploadJournal::Entry& old) {
  if (old.size != plan_.size || old.part_size != plan_.part_size ||
      old.crc != sums_.whole) {
    return false;
  }
  const auto found = list_parts(s3_, to_, old.upload_id);
  if (!found) {
    return false;
  }
  for (const auto& [number, part] : *found) {
    const auto index = static_cast<size_t>(number - 1);
    if (index < etags_.size() && part.size == plan_.size_of(index) &&
        !part.etag.empty()) {
      etags_[index] = part.etag;
      there_ += part.size;
    }
  }
  upload_id_ = old.upload_id;
  return true;
}

// Goes on with the upload that the journal remembers, or begins one and ends
// those that nobody will complete: their parts would cost money for ever.
Result<void> Uploader::begin() {
  etags_.assign(plan_.count(), "");
  there_ = 0;
  const auto old = journal_.read().value_or(UploadJournal::Entry{});
  if (!old.upload_id.empty()) {
    if (goes_on_with(old)) {
      return {};
    }
    (void)abort_upload(s3_, to_, old.upload_id);
  }
  // One that died between the store's answer and its note has no id here.
  const int64_t since = old.upload_id.empty() ? old.begun : 0;
  const auto ended = end_stale_uploads(s3_, to_, since);
  if (!ended && s3_.options.client.say) {
    s3_.options.client.say(
        "uploads that were broken off stay: " + ended.error().to_string());
  }
  UploadJournal::Entry entry{
      "", plan_.size, plan_.part_size, sums_.whole, since};
  if (ended || since == 0) {
    entry.begun = static_cast<int64_t>(s3_.server_time());
  }
  journal_.write(entry);
  LOCKSTEP_ASSIGN(upload_id_, begin_upload(s3_, to_, sums_.whole));
  entry.upload_id = upload_id_;
  journal_.write(entry);
  return {};
}

// Straight from the file into what libcurl sends.
Result<void> Uploader::send_part(size_t index) {
  if (!etags_[index].empty()) {
    return {};
  }
  const uint64_t size = plan_.size_of(index);
  std::optional<Error> failed;
  uint32_t crc = 0;
  BodySource source;
  source.size = size;
  source.read = [&](uint64_t offset, std::span<char> into) {
    const auto read =
        read_at(file_.get(), from_, plan_.offset_of(index) + offset, into);
    if (!read) {
      failed = read.error();
      return false;
    }
    crc = crc32c({into.data(), into.size()}, offset == 0 ? 0 : crc);
    // The last bytes are held back: the store never has a whole part of which
    // half is of another version.
    if (offset + into.size() == size && crc != sums_.crcs[index]) {
      failed = changed();
      return false;
    }
    return true;
  };
  AwsRequest asked = s3_.request("PUT", "PutObject", to_);
  asked.query = {
      {"partNumber", std::to_string(index + 1)}, {"uploadId", upload_id_}};
  asked.body_source = &source;
  asked.body_sha256 = sums_.hashes[index];
  if (s3_.is_https()) {
    LOCKSTEP_ASSIGN(
        const std::string md5, read_part_md5(file_.get(), from_, plan_, index));
    asked.headers.emplace_back("Content-MD5", content_md5(md5));
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

// What may pass later is kept for the next call; all else is taken away.
void Uploader::give_up(const Error& error) {
  const bool later = error.retry() || error.code() == ErrorCode::kInterrupted;
  if (later && journal_.keeps()) {
    return;
  }
  (void)abort_upload(s3_, to_, upload_id_);
  journal_.forget();
}

// Told again when the upload completes; asked now, nothing moves in vain.
Result<void> Uploader::check_condition() {
  const S3Condition& condition = options_.condition;
  if (!condition.absent && condition.etag.empty()) {
    return {};
  }
  const auto there = s3_.head(to_);
  const bool holds =
      condition.absent ? !there : there && there->etag == condition.etag;
  if (!holds && (there || there.error().code() == ErrorCode::kNotFound)) {
    return Error(
        ErrorCode::kExists,
        fmt::format(
            "{} is not stored: {}",
            to_.to_string(),
            condition.absent ? "there is one already"
                             : "it is another one by now"));
  }
  return {};
}

Result<Transferred> Uploader::in_parts() {
  LOCKSTEP_ASSIGN(
      sums_,
      read_part_sums(
          file_.get(),
          from_,
          plan_,
          {.hash = !s3_.is_https(), .workers = s3_.options.workers}));
  LOCKSTEP_TRY(check_condition());
  journal_ = UploadJournal(
      s3_.options.state,
      s3_.request("PUT", "PutObject", to_).endpoint + " " + to_.to_string());
  for (int attempt = 1;; ++attempt) {
    if (auto begun = begin(); !begun) {
      // Without an answer there may be one by now: the note stays.
      if (!begun.error().retry()) {
        journal_.forget();
      }
      return std::move(begun.error());
    }
    auto sent =
        run_workers(etags_.size(), s3_.options.workers, [&](size_t index) {
          return send_part(index);
        });
    if (sent) {
      sent = check_unchanged();
    }
    Result<std::string> etag =
        sent ? complete_upload(
                   s3_,
                   to_,
                   {upload_id_, etags_, plan_.size, sums_.whole},
                   options_.condition)
             : Result<std::string>(sent.error());
    if (etag) {
      journal_.forget();
      return Transferred{1, plan_.size, moved_.load(), 0, std::move(*etag)};
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
  if (plan_.size <= plan_.part_size) {
    return in_one_piece();
  }
  return in_parts();
}

}  // namespace

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
