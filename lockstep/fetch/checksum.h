#pragma once

// Digests of bytes and files, by OpenSSL. A Digest is used by one thread.

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

enum class ChecksumKind { kMd5, kSha256 };

struct Checksum {
  ChecksumKind kind = ChecksumKind::kSha256;
  std::string hex;  // lower case
  // "sha256:5b41...".
  std::string to_string() const;
};

// "sha256:HEX" or "md5:HEX".
Result<Checksum> parse_checksum(std::string_view text);

class Digest {
 public:
  explicit Digest(ChecksumKind kind);
  Digest(Digest&&) noexcept;
  ~Digest();
  void update(std::string_view bytes);
  // Once, at the end: the digest in lower-case hexadecimal digits.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Result<Checksum> file_checksum(const os::Path& path, ChecksumKind kind);

// kCorrupt, with both values, when the file's is another.
Result<void> verify_file(const os::Path& path, const Checksum& expected);

}  // namespace lockstep::fetch
