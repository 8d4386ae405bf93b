#include "lockstep/data/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/data/dataset.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::data {
namespace {

[[noreturn]] void fail_errno(const std::string& path, int number) {
  throw DataError(
      fmt::format("cannot read {}: {}", path, std::strerror(number)));
}

}  // namespace

std::vector<uint8_t> read_file(const std::string& path, uint64_t limit) {
  // Without waiting for who writes to a pipe of that name.
  os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!file || ::fstat(file.get(), &facts) != 0) {
    fail_errno(path, errno);
  }
  if (!S_ISREG(facts.st_mode)) {
    throw DataError(fmt::format("cannot read {}: not a file", path));
  }
  if (static_cast<uint64_t>(facts.st_size) > limit) {
    throw DataError(
        fmt::format(
            "{}: {} bytes, more than the {} that are accepted",
            path,
            facts.st_size,
            limit));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(facts.st_size));
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got =
        ::read(file.get(), bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_errno(path, errno);
    }
    if (got == 0) {
      break;  // it shrank while being read; what reads on will say so
    }
    at += static_cast<size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

struct ByteStream::Inflater {
  z_stream stream{};
  bool ended = false;
  Inflater() {
    // 16: a gzip header is expected and the trailer's checksum verified.
    if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) {
      throw DataError("zlib cannot start: out of memory");
    }
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ByteStream::ByteStream(const std::string& path)
    : path_(path), bytes_(read_file(path)) {
  if (bytes_.size() >= 2 && bytes_[0] == 0x1f && bytes_[1] == 0x8b) {
    inflater_ = std::make_unique<Inflater>();
  }
}

ByteStream::~ByteStream() = default;

size_t ByteStream::read_some(std::span<uint8_t> target) {
  if (!inflater_) {
    const size_t count = std::min(target.size(), bytes_.size() - at_);
    std::copy_n(bytes_.data() + at_, count, target.data());
    at_ += count;
    return count;
  }
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  z_stream& stream = inflater_->stream;
  if (inflater_->ended) {
    return 0;
  }
  const auto offered = static_cast<uInt>(std::min(bytes_.size() - at_, kMost));
  const auto wanted = static_cast<uInt>(std::min(target.size(), kMost));
  stream.next_in = bytes_.data() + at_;
  stream.avail_in = offered;
  stream.next_out = target.data();
  stream.avail_out = wanted;
  const int status = inflate(&stream, Z_NO_FLUSH);
  at_ += offered - stream.avail_in;
  const size_t got = wanted - stream.avail_out;
  if (status == Z_STREAM_END) {
    // A file may be several, one after the other: their contents are one.
    const bool more = bytes_.size() - at_ >= 2 && bytes_[at_] == 0x1f &&
                      bytes_[at_ + 1] == 0x8b;
    inflater_->ended = !more || inflateReset(&stream) != Z_OK;
  } else if (status == Z_BUF_ERROR || (status == Z_OK && got == 0)) {
    if (at_ >= bytes_.size()) {
      throw DataError(
          fmt::format(
              "{}: truncated: the gzip stream ends after {} bytes",
              path_,
              delivered_ + got));
    }
  } else if (status != Z_OK) {
    throw DataError(
        fmt::format(
            "{}: damaged gzip stream after {} bytes: {}",
            path_,
            delivered_ + got,
            stream.msg != nullptr ? stream.msg : zError(status)));
  }
  return got;
}

void ByteStream::read(std::span<uint8_t> target) {
  size_t at = 0;
  while (at < target.size()) {
    const size_t got = read_some(target.subspan(at));
    at += got;
    delivered_ += got;
    if (got == 0 && (!inflater_ || inflater_->ended)) {
      throw DataError(
          fmt::format(
              "{}: truncated: {} bytes where at least {} were expected",
              path_,
              delivered_,
              delivered_ + target.size() - at));
    }
  }
}

void ByteStream::expect_end() {
  uint8_t extra = 0;
  while (true) {
    const size_t got = read_some({&extra, 1});
    if (got != 0) {
      throw DataError(
          fmt::format(
              "{}: longer than the {} bytes that its header states",
              path_,
              delivered_));
    }
    if (!inflater_ || inflater_->ended) {
      return;
    }
  }
}

}  // namespace lockstep::data
