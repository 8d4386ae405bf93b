#include "lockstep/fetch/multipart.h"

#include <fmt/format.h>

namespace lockstep::fetch {
namespace {

// A store whose clock is further off than this refuses what we sign.
constexpr int64_t kClockSlack = 15 * 60;

}  // namespace

Result<std::string>
begin_upload(S3::State& s3, const S3Address& to, const std::string& crc) {
  const auto since = static_cast<int64_t>(s3.server_time());
  AwsRequest asked = s3.request("POST", "PutObject", to);
  asked.query = {{"uploads", ""}};
  asked.headers.emplace_back(std::string(kMetadata) + kCrcName, crc);
  asked.expect_xml = true;
  asked.fresh = true;  // else libcurl may send it twice and begin two
  LOCKSTEP_ASSIGN(const AwsReply reply, s3.call(asked, to));
  LOCKSTEP_ASSIGN(std::string id, read_upload_id(*reply.xml));
  if (reply.attempts > 1) {
    (void)end_stale_uploads(s3, to, since, id);
  }
  return id;
}

Result<std::map<int, S3Parts::Part>>
list_parts(S3::State& s3, const S3Address& to, const std::string& id) {
  std::map<int, S3Parts::Part> found;
  std::string marker;
  while (true) {
    AwsRequest asked = s3.request("GET", "ListMultipartUploadParts", to);
    asked.query = {{"uploadId", id}};
    if (!marker.empty()) {
      asked.query.emplace_back("part-number-marker", marker);
    }
    asked.expect_xml = true;
    LOCKSTEP_ASSIGN(const AwsReply reply, s3.call(asked, to));
    LOCKSTEP_ASSIGN(S3Parts page, read_parts(*reply.xml));
    found.merge(page.parts);
    if (page.next.empty() || page.next == marker) {
      return found;
    }
    marker = page.next;
  }
}

Result<std::string> complete_upload(
    S3::State& s3,
    const S3Address& to,
    const WholeUpload& upload,
    const S3Condition& condition) {
  const std::string body = write_complete(upload.etags);
  AwsRequest asked = s3.request("POST", "PutObject", to);
  asked.query = {{"uploadId", upload.id}};
  asked.headers.emplace_back("Content-Type", "application/xml");
  asked.body = body;
  asked.expect_xml = true;
  add_condition(asked, condition);
  LOCKSTEP_ASSIGN(const AwsReply reply, s3.send(asked, to));
  if (!reply.fault) {
    std::string etag =
        plain_etag(xml_text(*reply.xml, "CompleteMultipartUploadResult/ETag"));
    if (etag.empty()) {  // radosgw does not tell it here
      LOCKSTEP_ASSIGN(const S3Object there, s3.head(to));
      etag = there.etag;
    }
    return etag;
  }
  // The answer to the attempt that did it may have been lost.
  if (reply.attempts > 1) {
    const auto there = s3.head(to);
    if (there && there->size == upload.size &&
        there->metadata.contains(kCrcName) &&
        there->metadata.at(kCrcName) == upload.crc) {
      return there->etag;
    }
  }
  return reply.fault->to_error(asked.action, asked.subject);
}

Result<void>
abort_upload(S3::State& s3, const S3Address& to, const std::string& id) {
  AwsRequest asked = s3.request("DELETE", "AbortMultipartUpload", to);
  asked.query = {{"uploadId", id}};
  LOCKSTEP_ASSIGN(const AwsReply reply, s3.send(asked, to));
  if (reply.fault && reply.fault->code != "NoSuchUpload") {
    return reply.fault->to_error(asked.action, asked.subject);
  }
  return {};
}

Result<void> list_uploads(
    S3::State& s3,
    const S3Address& address,
    const std::function<Result<void>(S3Upload)>& each) {
  const S3Address bucket{address.bucket, ""};
  S3Uploads page;
  while (true) {
    AwsRequest asked = s3.request("GET", "ListBucketMultipartUploads", bucket);
    asked.subject = address.to_string();
    // Keys are not asked for in code: radosgw writes them so and does not say.
    asked.query = {{"uploads", ""}, {"prefix", address.key}};
    if (!page.next_key.empty()) {
      asked.query.emplace_back("key-marker", page.next_key);
      asked.query.emplace_back("upload-id-marker", page.next_id);
    }
    asked.expect_xml = true;
    LOCKSTEP_ASSIGN(const AwsReply reply, s3.call(asked, bucket));
    const S3Uploads before = std::move(page);
    LOCKSTEP_ASSIGN(page, read_uploads(*reply.xml));
    for (S3Upload& upload : page.uploads) {
      LOCKSTEP_TRY(each(std::move(upload)));
    }
    if (page.next_key.empty()) {
      return {};
    }
    if (page.next_key == before.next_key && page.next_id == before.next_id) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format(
              "{} {}: the server gives the same page again",
              asked.action,
              asked.subject));
    }
  }
}

Result<void> end_stale_uploads(
    S3::State& s3,
    const S3Address& to,
    int64_t since,
    const std::string& keep) {
  const auto now = static_cast<int64_t>(s3.server_time());
  const int64_t stale = s3.options.stale / std::chrono::seconds(1);
  std::vector<std::string> ids;
  LOCKSTEP_TRY(list_uploads(s3, to, [&](const S3Upload& one) {
    const bool is_old = one.begun > 0 && stale > 0 && now - one.begun > stale;
    const bool is_ours = since > 0 && one.begun >= since - kClockSlack;
    if (one.key == to.key && one.id != keep && (is_old || is_ours)) {
      ids.push_back(one.id);
    }
    return Result<void>{};
  }));
  for (const std::string& id : ids) {
    LOCKSTEP_TRY(abort_upload(s3, to, id));
  }
  return {};
}

Result<void> S3::list_uploads(
    const S3Address& address,
    const std::function<Result<void>(S3Upload)>& each) {
  return fetch::list_uploads(*state_, address, each);
}

Result<void> S3::abort_upload(const S3Address& address, const std::string& id) {
  return fetch::abort_upload(*state_, address, id);
}

}  // namespace lockstep::fetch
