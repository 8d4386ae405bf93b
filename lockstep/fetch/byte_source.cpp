#include "lockstep/fetch/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <vector>

#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

class PlainSource : public ByteSource {
 public:
  PlainSource(os::Path path, os::Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Result<size_t> read(std::span<char> into) override {
    size_t done = 0;
    while (done < into.size()) {
      const ssize_t count =
          ::read(file_.get(), into.data() + done, into.size() - done);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return os_error(fmt::format("cannot read {}", path_.string()), errno);
      }
      if (count == 0) {
        break;
      }
      done += static_cast<size_t>(count);
    }
    return done;
  }
  bool gzipped() const override { return false; }

 private:
  os::Path path_;
  os::Descriptor file_;
};

class GzipSource : public ByteSource {
 public:
  GzipSource(os::Path path, std::unique_ptr<PlainSource> packed)
      : path_(std::move(path)), packed_(std::move(packed)), input_(1 << 18) {
    ready_ = inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK;
  }
  ~GzipSource() override {
    if (ready_) {
      inflateEnd(&stream_);
    }
  }

  Result<size_t> read(std::span<char> into) override {
    if (!ready_) {
      return Error(ErrorCode::kInternal, "zlib did not start");
    }
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(into.size());
    while (stream_.avail_out > 0 && !ended_) {
      LOCKSTEP_TRY(refill());
      if (between_members_) {
        if (stream_.avail_in == 0) {
          ended_ = true;
          break;
        }
        inflateReset(&stream_);
        between_members_ = false;
      }
      if (stream_.avail_in == 0) {
        return damaged("it ends in the middle: it is truncated");
      }
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_members_ = true;  // another member may follow
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return damaged(stream_.msg != nullptr ? stream_.msg : "not gzip data");
      }
    }
    return into.size() - stream_.avail_out;
  }
  bool gzipped() const override { return true; }

 private:
  Error damaged(const std::string& what) const {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{}: {}", path_.string(), what));
  }

  Result<void> refill() {
    if (stream_.avail_in == 0) {
      LOCKSTEP_ASSIGN(const size_t count, packed_->read(input_));
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
      stream_.avail_in = static_cast<uInt>(count);
    }
    return {};
  }

  os::Path path_;
  std::unique_ptr<PlainSource> packed_;
  std::vector<char> input_;
  z_stream stream_{};
  bool ready_ = false;
  bool between_members_ = false;
  bool ended_ = false;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_bytes(const os::Path& path) {
  os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return os_error(fmt::format("cannot open {}", path.string()), errno);
  }
  unsigned char magic[2] = {};
  const ssize_t count = ::pread(file.get(), magic, sizeof(magic), 0);
  if (count < 0) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  auto plain = std::make_unique<PlainSource>(path, std::move(file));
  if (count == 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
    return std::make_unique<GzipSource>(path, std::move(plain));
  }
  return plain;
}

}  // namespace lockstep::fetch
