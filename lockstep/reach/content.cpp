#include "lockstep/reach/content.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>

#include "lockstep/os/descriptor.h"

namespace lockstep::reach {
namespace {

constexpr size_t kBlock = 256 << 10;
constexpr size_t kHexLength = 64;
constexpr time_t kUnsettled = 2;  // seconds

std::string stamp_of(const struct stat& facts) {
  return fmt::format(
      "{} {} {} {} {}.{:09}",
      facts.st_dev,
      facts.st_ino,
      facts.st_size,
      facts.st_mode & 0111,
      facts.st_ctim.tv_sec,
      facts.st_ctim.tv_nsec);
}

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{
      EVP_MD_CTX_new(),
      EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr);
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::string_view bytes) {
  EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size());
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += fmt::format("{:02x}", digest[i]);
  }
  return text;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.finish();
}

Result<std::string> sha256_of_file(const os::Path& path) {
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  Sha256 digest;
  std::string block(kBlock, '\0');
  while (true) {
    const ssize_t count = ::read(file.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return os_error(fmt::format("cannot read {}", path.string()), errno);
    }
    if (count == 0) {
      return digest.finish();
    }
    digest.update(
        std::string_view(block).substr(0, static_cast<size_t>(count)));
  }
}

HashMemory::HashMemory(os::Path file) : file_(std::move(file)) {
  const auto text = os::real_files().read(file_);
  if (!text) {
    return;
  }
  // hash, tab, stamp, tab, path, end of line.
  size_t start = 0;
  while (start < text->size()) {
    const size_t end = std::min(text->find('\n', start), text->size());
    const std::string_view line =
        std::string_view(*text).substr(start, end - start);
    start = end + 1;
    const size_t first = line.find('\t');
    const size_t second =
        first == std::string_view::npos ? first : line.find('\t', first + 1);
    if (first != kHexLength || second == std::string_view::npos) {
      continue;
    }
    entries_[std::string(line.substr(second + 1))] = {
        std::string(line.substr(first + 1, second - first - 1)),
        std::string(line.substr(0, first))};
  }
}

Result<std::string> HashMemory::hash(const os::Path& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  const std::string stamp = stamp_of(facts);
  const auto found = entries_.find(path.string());
  if (found != entries_.end() && found->second.stamp == stamp) {
    return found->second.hash;
  }
  LOCKSTEP_ASSIGN(std::string hash, sha256_of_file(path));
  if (::time(nullptr) - facts.st_ctim.tv_sec > kUnsettled &&
      path.string().find('\n') == std::string::npos) {
    entries_[path.string()] = {stamp, hash};
    changed_ = true;
  }
  return hash;
}

void HashMemory::save() {
  if (!changed_) {
    return;
  }
  std::string text;
  for (const auto& [path, entry] : entries_) {
    text += fmt::format("{}\t{}\t{}\n", entry.hash, entry.stamp, path);
  }
  if (os::real_files().make_directories(file_.parent_path())) {
    (void)os::real_files().write_atomic(file_, text).has_value();
  }
  changed_ = false;
}

std::string compress(std::string_view bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(
      packed.data(), packed.size(), bytes.data(), bytes.size(), 1);
  packed.resize(ZSTD_isError(size) != 0 ? 0 : size);
  return packed;
}

Result<std::string> decompress(std::string_view bytes, size_t size) {
  std::string plain(size, '\0');
  const size_t count =
      ZSTD_decompress(plain.data(), plain.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(count) != 0 || count != size) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} bytes that should unpack to {}: {}",
            bytes.size(),
            size,
            ZSTD_isError(count) != 0 ? ZSTD_getErrorName(count)
                                     : "another size"));
  }
  return plain;
}

Result<std::string> gzip(std::string_view bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  if (::deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return Error(ErrorCode::kInternal, "zlib does not start");
  }
  std::string packed(::deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int ended = ::deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (ended != Z_STREAM_END) {
    return Error(ErrorCode::kInternal, "zlib does not compress");
  }
  return packed;
}

os::Path lockstep_home() {
  if (const char* home = std::getenv("LOCKSTEP_HOME");
      home != nullptr && *home != '\0') {
    return home;
  }
  const char* home = std::getenv("HOME");
  return os::Path(home == nullptr ? "/" : home) / ".cache" / "lockstep";
}

}  // namespace lockstep::reach
