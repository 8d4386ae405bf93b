#include "lockstep/fetch/checksum.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

const char* name_of(ChecksumKind kind) {
  return kind == ChecksumKind::kMd5 ? "md5" : "sha256";
}

}  // namespace

std::string Checksum::to_string() const {
  return fmt::format("{}:{}", name_of(kind), hex);
}

Result<Checksum> parse_checksum(std::string_view text) {
  for (const auto kind : {ChecksumKind::kMd5, ChecksumKind::kSha256}) {
    const std::string prefix = std::string(name_of(kind)) + ":";
    if (!text.starts_with(prefix)) {
      continue;
    }
    const std::string_view digits = text.substr(prefix.size());
    const size_t wanted = kind == ChecksumKind::kMd5 ? 32 : 64;
    const bool hex =
        digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    if (hex && digits.size() == wanted) {
      return Checksum{kind, std::string(digits)};
    }
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "'{}' is not a checksum; write it as sha256: and 64, or md5: and 32 "
          "lower-case hexadecimal digits",
          text));
}

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(ChecksumKind kind) : state_(std::make_unique<State>()) {
  const EVP_MD* algorithm =
      kind == ChecksumKind::kMd5 ? EVP_md5() : EVP_sha256();
  const int ok = EVP_DigestInit_ex(state_->context, algorithm, nullptr);
  LOCKSTEP_CHECK_EQ(ok, 1);
}
Digest::Digest(Digest&&) noexcept = default;
Digest::~Digest() = default;

void Digest::update(std::string_view bytes) {
  const int ok = EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
  LOCKSTEP_CHECK_EQ(ok, 1);
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  const int ok = EVP_DigestFinal_ex(state_->context, bytes.data(), &size);
  LOCKSTEP_CHECK_EQ(ok, 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += fmt::format("{:02x}", bytes[i]);
  }
  return hex;
}

Result<Checksum> file_checksum(const os::Path& path, ChecksumKind kind) {
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return os_error(fmt::format("cannot open {}", path.string()), errno);
  }
  Digest digest(kind);
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return os_error(fmt::format("cannot read {}", path.string()), errno);
    }
    if (count == 0) {
      return Checksum{kind, digest.finish()};
    }
    digest.update({buffer.data(), static_cast<size_t>(count)});
  }
}

Result<void> verify_file(const os::Path& path, const Checksum& expected) {
  LOCKSTEP_ASSIGN(const auto found, file_checksum(path, expected.kind));
  if (found.hex == expected.hex) {
    return {};
  }
  return Error(
      ErrorCode::kCorrupt,
      fmt::format(
          "{} is not the file it should be: {} instead of {}",
          path.string(),
          found.to_string(),
          expected.to_string()));
}

}  // namespace lockstep::fetch
