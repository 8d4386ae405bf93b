#pragma once

// What the parts of the S3 client share. Internal to fetch.

#include <map>
#include <mutex>

#include "lockstep/fetch/s3.h"

namespace lockstep::fetch {

// In the metadata of what we store: the CRC-32C of the whole object.
inline constexpr const char* kCrcName = "lockstep-crc32c";
inline constexpr std::string_view kMetadata = "x-amz-meta-";  // as headers

std::string crc_text(uint32_t crc);  // "0a1b2c3d"

struct S3::State {
  explicit State(S3Options given);

  S3Options options;
  AwsClient client;
  std::mutex mutex;
  std::map<std::string, std::string> regions;  // of buckets, as learned

  std::string region_of(const std::string& bucket);
  bool is_https() const;
  double server_time() const;  // Unix seconds, by the store's clock if known
  // A request to `address`, without its query, headers and body.
  AwsRequest
  request(const char* method, const char* action, const S3Address& address);
  // Sends it; a bucket elsewhere is followed there once.
  Result<AwsReply> send(AwsRequest& request, const S3Address& address);
  Result<AwsReply> call(AwsRequest& request, const S3Address& address);

  Result<S3Object> head(const S3Address& address);
  // Some of one object's bytes, "bytes=a-b" of the version `etag`. `rewind` is
  // called before each further attempt.
  Result<AwsReply> get_into(
      const S3Address& address,
      const std::string& range,
      const std::string& etag,
      BodyTarget& target,
      const std::function<void()>& rewind);
  Result<std::string> put(
      const S3Address& address,
      std::string_view bytes,
      const S3Condition& condition);
  Result<void> list(
      const S3Address& address,
      const std::function<Result<void>(S3Object)>& each);
  // Whole small objects, checked against what the reply says of them.
  Result<std::string> get_checked(const S3Address& address, S3Object& object);

  Result<Transferred> upload(
      const os::Path& from,
      const S3Address& to,
      const TransferOptions& options);
  Result<Transferred> download(
      const S3Object& object,
      const S3Address& from,
      const os::Path& to,
      const TransferOptions& options);
};

S3Object object_of(const AwsReply& reply, const std::string& key);
void add_condition(AwsRequest& request, const S3Condition& condition);
std::string md5_hex(std::string_view bytes);
// The header's value of an MD5, for https, where the signature does not cover
// the body.
std::string content_md5(const std::string& hex);
// Whether an ETag is the MD5 of the content.
bool is_md5(const std::string& etag);
// kCorrupt when the bytes are not what the object's description promises.
Result<void> check_content(
    const S3Address& address,
    const S3Object& object,
    std::string_view bytes);

}  // namespace lockstep::fetch
