#include "lockstep/fetch/archive.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "lockstep/fetch/byte_source.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr size_t kBlock = 512;
constexpr uint64_t kMaxNameBytes = 1 << 20;

using Header = std::array<char, kBlock>;

std::string_view field(const Header& header, size_t offset, size_t size) {
  const std::string_view whole(header.data() + offset, size);
  return whole.substr(0, whole.find('\0'));
}

// Octal digits, or GNU's base 256 when the top bit is set.
std::optional<uint64_t>
number(const Header& header, size_t offset, size_t size) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(header[offset]) & 0x80) != 0) {
    for (size_t i = 0; i < size; ++i) {
      auto byte = static_cast<unsigned char>(header[offset + i]);
      byte = i == 0 ? byte & 0x7f : byte;
      if (value >> 55 != 0) {
        return {};
      }
      value = value << 8 | byte;
    }
    return value;
  }
  std::string_view text = field(header, offset, size);
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  if (text.empty()) {
    return 0;
  }
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (failure != std::errc() || end != text.data() + text.size()) {
    return {};
  }
  return value;
}

bool checksum_holds(const Header& header) {
  constexpr size_t kAt = 148;
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kAt && i < kAt + 8;
    sum += own ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return number(header, kAt, 8) == sum;
}

class Unpacker {
 public:
  Unpacker(
      const os::Path& archive,
      const os::Path& into,
      const UnpackOptions& options,
      std::unique_ptr<ByteSource> source)
      : archive_(archive),
        into_(into),
        options_(options),
        source_(std::move(source)),
        buffer_(1 << 18) {}

  Result<std::vector<std::string>> run() {
    while (true) {
      Header header;
      LOCKSTEP_TRY(read_exactly(header));
      if (std::ranges::all_of(header, [](char c) { return c == 0; })) {
        LOCKSTEP_TRY(drain());
        return std::move(names_);
      }
      if (!checksum_holds(header)) {
        return damaged(
            names_.empty() ? "it is not a tar archive"
                           : "a header is damaged after " + names_.back());
      }
      LOCKSTEP_TRY(entry(header));
    }
  }

 private:
  Error damaged(const std::string& what) const {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{}: {}", archive_.string(), what));
  }
  Error refused(const std::string& name, const std::string& what) const {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{}: refused '{}': {}", archive_.string(), name, what));
  }

  Result<void> read_exactly(std::span<char> into) {
    LOCKSTEP_ASSIGN(const size_t count, source_->read(into));
    if (count != into.size()) {
      return damaged("it ends in the middle: it is truncated");
    }
    return {};
  }

  // What follows the end mark is padding; reading it checks gzip's checksum.
  Result<void> drain() {
    for (int i = 0; i < 64; ++i) {
      LOCKSTEP_ASSIGN(const size_t count, source_->read(buffer_));
      if (count < buffer_.size()) {
        break;
      }
    }
    return {};
  }

  Result<void> skip_padding(uint64_t size) {
    std::array<char, kBlock> rest;
    return read_exactly(
        std::span(rest).first((kBlock - size % kBlock) % kBlock));
  }

  Result<std::string> read_text(uint64_t size) {
    if (size > kMaxNameBytes) {
      return damaged("a name is longer than 1 MiB");
    }
    std::string text(size, '\0');
    LOCKSTEP_TRY(read_exactly(text));
    LOCKSTEP_TRY(skip_padding(size));
    return text;
  }

  // Records "LENGTH key=value\n".
  Result<void> take_pax(std::string_view text) {
    while (!text.empty() && text[0] != '\0') {
      size_t length = 0;
      const auto [end, failure] =
          std::from_chars(text.data(), text.data() + text.size(), length);
      const auto used = static_cast<size_t>(end - text.data());
      if (failure != std::errc() || length <= used + 1 ||
          length > text.size()) {
        return damaged("an extended header is damaged");
      }
      std::string_view record = text.substr(used + 1, length - used - 2);
      if (record.starts_with("path=")) {
        next_name_ = std::string(record.substr(5));
      } else if (record.starts_with("size=")) {
        record.remove_prefix(5);
        uint64_t size = 0;
        std::from_chars(record.data(), record.data() + record.size(), size);
        next_size_ = size;
      }
      text.remove_prefix(length);
    }
    return {};
  }

  Result<void> entry(const Header& header) {
    const auto written = number(header, 124, 12);
    if (!written) {
      return damaged("a header has no size");
    }
    const char type = header[156];
    if (type == 'L' || type == 'x') {
      LOCKSTEP_ASSIGN(const std::string text, read_text(*written));
      if (type == 'x') {
        return take_pax(text);
      }
      next_name_ = text.substr(0, text.find('\0'));
      return {};
    }
    if (type == 'g' || type == 'K') {
      return copy(*written, -1);
    }
    std::string name(field(header, 0, 100));
    const bool ustar = field(header, 257, 5) == "ustar";
    // GNU's own format (magic "ustar  ") keeps other things at the prefix.
    if (const auto prefix = field(header, 345, 155);
        ustar && header[262] == '\0' && !prefix.empty()) {
      name = std::string(prefix) + "/" + name;
    }
    if (next_name_) {
      name = std::move(*next_name_);
    }
    const uint64_t size = next_size_.value_or(*written);
    next_name_.reset();
    next_size_.reset();
    return unpack(name, type, size, number(header, 100, 8).value_or(0644));
  }

  Result<void>
  unpack(const std::string& name, char type, uint64_t size, uint64_t mode) {
    LOCKSTEP_ASSIGN(const os::Path relative, safe_path(name));
    const bool folder = type == '5' || name.ends_with('/');
    if (!folder && type != '0' && type != '\0' && type != '7') {
      return refused(
          name,
          type == '1' || type == '2' ? "it is a link"
                                     : "it is neither a file nor a folder");
    }
    if (relative.empty()) {
      return copy(size, -1);  // stripped away
    }
    if (folder) {
      LOCKSTEP_TRY(os::real_files().make_directories(into_ / relative));
      return copy(size, -1);
    }
    total_ += size;
    if (total_ > options_.max_bytes || size > options_.max_bytes) {
      return refused(
          name,
          fmt::format(
              "more than {} would be unpacked",
              format_bytes({options_.max_bytes})));
    }
    const os::Path path = into_ / relative;
    LOCKSTEP_TRY(os::real_files().make_directories(path.parent_path()));
    const os::Descriptor file(
        ::open(
            path.c_str(),
            O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
            (mode & 0111) != 0 ? 0777 : 0666));
    if (!file) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    LOCKSTEP_TRY(copy(size, file.get()).with_context(path.string()));
    names_.push_back(relative.string());
    return {};
  }

  Result<os::Path> safe_path(const std::string& name) const {
    if (name.empty() || name[0] == '/' ||
        name.find('\0') != std::string::npos) {
      return refused(name, "it is an absolute or empty name");
    }
    os::Path safe;
    int strip = options_.strip;
    for (const auto& part : os::Path(name)) {
      if (part == "..") {
        return refused(name, "it leads out of the folder");
      }
      if (part != "." && !part.empty() && strip-- <= 0) {
        safe /= part;
      }
    }
    return safe;
  }

  // The next `size` bytes and their padding, to a file or nowhere.
  Result<void> copy(uint64_t size, int file) {
    uint64_t left = size;
    while (left > 0) {
      const auto chunk = std::span(buffer_).first(
          static_cast<size_t>(std::min<uint64_t>(left, buffer_.size())));
      LOCKSTEP_TRY(read_exactly(chunk));
      LOCKSTEP_TRY(write_all(file, chunk));
      left -= chunk.size();
    }
    return skip_padding(size);
  }

  static Result<void> write_all(int file, std::span<const char> bytes) {
    while (file >= 0 && !bytes.empty()) {
      const ssize_t count = ::write(file, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return os_error("cannot write", errno);
      }
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }

  const os::Path& archive_;
  const os::Path& into_;
  const UnpackOptions& options_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  std::vector<std::string> names_;
  std::optional<std::string> next_name_;
  std::optional<uint64_t> next_size_;
  uint64_t total_ = 0;
};

}  // namespace

Result<std::vector<std::string>> unpack_tar(
    const os::Path& archive,
    const os::Path& into,
    const UnpackOptions& options) {
  LOCKSTEP_ASSIGN(auto source, open_bytes(archive));
  LOCKSTEP_TRY(os::real_files().make_directories(into));
  return Unpacker(archive, into, options, std::move(source)).run();
}

Result<uint64_t> gunzip_file(const os::Path& from, const os::Path& to) {
  LOCKSTEP_ASSIGN(auto source, open_bytes(from));
  if (!source->gzipped()) {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{}: it is not gzip", from.string()));
  }
  LOCKSTEP_TRY(os::real_files().remove(to));
  LOCKSTEP_ASSIGN(auto file, os::real_files().open_append(to));
  std::string buffer(1 << 18, '\0');
  uint64_t total = 0;
  while (true) {
    LOCKSTEP_ASSIGN(const size_t count, source->read(buffer));
    LOCKSTEP_TRY(file->append(std::string_view(buffer).substr(0, count)));
    total += count;
    if (count < buffer.size()) {
      LOCKSTEP_TRY(file->sync());
      return total;
    }
  }
}

}  // namespace lockstep::fetch
