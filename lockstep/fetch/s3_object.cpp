#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "lockstep/base/check.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/http_date.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"

namespace lockstep::fetch {

std::string md5_hex(std::string_view bytes) {
  Digest digest(ChecksumKind::kMd5);
  digest.update(bytes);
  return digest.finish();
}

std::string S3Address::to_string() const {
  return key.empty() ? "s3://" + bucket
                     : fmt::format("s3://{}/{}", bucket, key);
}

S3Address S3Address::below(std::string_view name) const {
  S3Address out = *this;
  if (!out.key.empty() && !out.key.ends_with('/')) {
    out.key += '/';
  }
  out.key += name;
  return out;
}

Result<S3Address> parse_s3_address(std::string_view text) {
  const auto bad = [&](const char* what) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}': {}; write s3://BUCKET/KEY", text, what));
  };
  constexpr std::string_view kScheme = "s3://";
  if (!text.starts_with(kScheme)) {
    return bad("not an address in S3");
  }
  const std::string_view rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Address out;
  out.bucket = rest.substr(0, slash);
  out.key = rest.substr(std::min(slash + 1, rest.size()));
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  const auto& name = out.bucket;
  const bool fine = name.size() >= 3 && name.size() <= 63 &&
                    letter(name.front()) && letter(name.back()) &&
                    std::all_of(name.begin(), name.end(), [&](char c) {
                      return letter(c) || c == '-' || c == '.';
                    });
  if (!fine) {
    return bad(
        "a bucket is 3 to 63 lower-case letters, digits, '-' and '.', with a "
        "letter or digit at its ends");
  }
  if (out.key.size() > 1024) {
    return bad("a key has at most 1024 bytes");
  }
  // S3 would take it for a name; no folder could hold it.
  for (const auto& part : std::filesystem::path(out.key)) {
    if (part == "." || part == "..") {
      return bad("no part of a key is '.' or '..'");
    }
  }
  return out;
}

std::string crc_text(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

bool is_md5(const std::string& etag) {
  return etag.size() == 32 &&
         etag.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string content_md5(const std::string& hex) {
  std::array<unsigned char, 16> hash{};
  LOCKSTEP_CHECK_EQ(hex.size(), 2 * hash.size());
  for (size_t i = 0; i < hash.size(); ++i) {
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, hash[i], 16);
  }
  std::array<unsigned char, 32> text{};
  const int length = ::EVP_EncodeBlock(
      text.data(), hash.data(), static_cast<int>(hash.size()));
  return {
      reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)};
}

S3Object object_of(const AwsReply& reply, const std::string& key) {
  S3Object object;
  object.key = key;
  for (const auto& [name, value] : reply.headers) {
    if (name == "content-length") {
      std::from_chars(value.data(), value.data() + value.size(), object.size);
    } else if (name == "etag") {
      object.etag = plain_etag(value);
    } else if (name == "last-modified") {
      object.modified = parse_http_date(value).value_or(0);
    } else if (name.starts_with(kMetadata)) {
      object.metadata[name.substr(kMetadata.size())] = value;
    }
  }
  // An encrypted object's ETag looks like an MD5 and is none.
  const auto encrypted = reply.headers.find("x-amz-server-side-encryption");
  const bool customer =
      reply.headers.contains("x-amz-server-side-encryption-customer-algorithm");
  if (customer || (encrypted != reply.headers.end() &&
                   encrypted->second.starts_with("aws:kms"))) {
    object.metadata["encrypted"] = "yes";
  }
  return object;
}

Result<void> check_content(
    const S3Address& address,
    const S3Object& object,
    std::string_view bytes) {
  const auto crc = object.metadata.find(kCrcName);
  std::string found;
  std::string wanted;
  if (crc != object.metadata.end()) {
    found = crc_text(crc32c(bytes));
    wanted = crc->second;
  } else if (is_md5(object.etag) && !object.metadata.contains("encrypted")) {
    found = md5_hex(bytes);
    wanted = object.etag;
  }
  if (found == wanted) {
    return {};
  }
  return Error(
             ErrorCode::kCorrupt,
             fmt::format(
                 "{} is not what was stored: its checksum is {} instead of {}",
                 address.to_string(),
                 found,
                 wanted))
      .with_retry();
}

void add_condition(AwsRequest& request, const S3Condition& condition) {
  if (condition.absent) {
    request.headers.emplace_back("If-None-Match", "*");
  }
  if (!condition.etag.empty()) {
    // Without quotes: AWS takes both, radosgw only this for a put.
    request.headers.emplace_back("If-Match", condition.etag);
  }
}

}  // namespace lockstep::fetch
