#include "lockstep/fetch/part_writer.h"

#include <algorithm>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/file_bytes.h"

namespace lockstep::fetch {
namespace {

// Measured: smaller pieces cost the kernel more, larger ones leave the cache.
constexpr size_t kGathered = size_t{1} << 20;

}  // namespace

PartWriter::PartWriter(
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
      buffer_(std::make_unique_for_overwrite<char[]>(kGathered)) {}

std::span<char> PartWriter::room() {
  const uint64_t left = size_ - written_ - held_;
  if (left == 0) {
    failed_ = Error(
        ErrorCode::kUnavailable,
        "the server sends more than the range it was asked for");
  }
  return {
      buffer_.get() + held_,
      static_cast<size_t>(std::min<uint64_t>(kGathered - held_, left))};
}

bool PartWriter::filled(size_t count) {
  held_ += count;
  if (held_ < kGathered) {
    return true;
  }
  auto done = flush();
  if (!done) {
    failed_ = std::move(done.error());
  }
  return !failed_;
}

Result<void> PartWriter::flush() {
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

void PartWriter::rewind() {
  written_ = 0;
  held_ = 0;
  crc_ = 0;
  failed_.reset();
}

}  // namespace lockstep::fetch
