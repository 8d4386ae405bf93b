#include "lockstep/reach/sender.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/units.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/far_end.h"
#include "lockstep/reach/message.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;

constexpr Duration kStall = std::chrono::seconds(60);

// Gives the pieces of all files, one after the other.
class Pieces {
 public:
  Pieces(const std::vector<Blob>& blobs, bool keep)
      : blobs_(blobs), keep_(keep) {}

  Result<std::optional<json>> next() {
    if (at_ == blobs_.size()) {
      return std::optional<json>();
    }
    const Blob& blob = blobs_[at_];
    if (!file_) {
      file_ = os::Descriptor(::open(blob.source.c_str(), O_RDONLY | O_CLOEXEC));
      offset_ = 0;
      if (!file_) {
        return os_error(
            fmt::format("cannot read {}", blob.source.string()), errno);
      }
    }
    LOCKSTEP_ASSIGN(const std::string text, read(blob));
    json piece = {
        {"hash", blob.hash},
        {"size", blob.size},
        {"offset", offset_},
        {"raw", text.size()},
        {"data", to_bytes(compress(text))},
        {"keep", keep_}};
    offset_ += text.size();
    if (offset_ == blob.size) {
      file_.reset();
      ++at_;
    }
    return std::optional<json>(std::move(piece));
  }

 private:
  Result<std::string> read(const Blob& blob) {
    std::string text(std::min<uint64_t>(kPiece, blob.size - offset_), '\0');
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = ::pread(
          file_.get(),
          text.data() + done,
          text.size() - done,
          static_cast<off_t>(offset_ + done));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return os_error(
            fmt::format("cannot read {}", blob.source.string()), errno);
      }
      if (count == 0) {
        return Error(
                   ErrorCode::kAborted,
                   fmt::format(
                       "{} became shorter while it was sent",
                       blob.source.string()))
            .with_retry();
      }
      done += static_cast<size_t>(count);
    }
    return text;
  }

  const std::vector<Blob>& blobs_;
  bool keep_;
  size_t at_ = 0;
  uint64_t offset_ = 0;
  os::Descriptor file_;
};

}  // namespace

Result<void>
send_blobs(Session& session, const std::vector<Blob>& blobs, bool keep) {
  Pieces pieces(blobs, keep);
  return session.call_many("put", [&] { return pieces.next(); }, kStall);
}

Result<void> check_room(
    const Session& session,
    const std::vector<Blob>& blobs,
    uint64_t free) {
  uint64_t needed = 0;
  for (const Blob& blob : blobs) {
    needed += blob.size;
  }
  if (needed <= free) {
    return {};
  }
  return Error(
             ErrorCode::kUnavailable,
             fmt::format(
                 "{}: no space: {} are to be sent and {} are free",
                 session.host(),
                 format_bytes({needed}),
                 format_bytes({free})))
      .with_fix(
          fmt::format(
              "free some room there, or set LOCKSTEP_FAR_HOME to a folder on "
              "{} that has it",
              session.host()));
}

}  // namespace lockstep::reach
