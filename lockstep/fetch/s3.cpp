#include "lockstep/fetch/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"

namespace lockstep::fetch {
namespace {

bool is_aws(const std::string& url) {
  const size_t begin = url.find("://");
  const std::string host =
      url.substr(begin == std::string::npos ? 0 : begin + 3);
  return host.ends_with(".amazonaws.com") ||
         host.ends_with(".amazonaws.com.cn");
}

S3Addressing addressing_of(const S3Options& options) {
  if (options.addressing != S3Addressing::kAuto) {
    return options.addressing;
  }
  const AwsSettings& settings = options.client.settings;
  const std::string style =
      settings.value(settings.profile, "s3.addressing_style");
  return style == "path"      ? S3Addressing::kPath
         : style == "virtual" ? S3Addressing::kVirtual
                              : S3Addressing::kAuto;
}

}  // namespace

S3::State::State(S3Options given)
    : options(std::move(given)), client(options.client) {
  options.addressing = addressing_of(options);
  if (options.workers <= 0) {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    options.workers = std::clamp(2 * cores, 4, 16);
  }
  while (options.endpoint.ends_with('/')) {
    options.endpoint.pop_back();
  }
}

std::string S3::State::region_of(const std::string& bucket) {
  const std::lock_guard lock(mutex);
  const auto found = regions.find(bucket);
  return found == regions.end() ? client.region() : found->second;
}

bool S3::State::is_https() const {
  return (options.endpoint.empty()
              ? client.settings().endpoint("s3", client.region())
              : options.endpoint)
      .starts_with("https://");
}

double S3::State::server_time() const {
  return options.client.clock->unix_seconds() + to_seconds(client.clock_skew());
}

AwsRequest S3::State::request(
    const char* method,
    const char* action,
    const S3Address& address) {
  AwsRequest out;
  out.service = "s3";
  out.action = fmt::format("s3:{}", action);
  out.subject = address.to_string();
  out.method = method;
  out.sign = !options.anonymous;
  out.region = region_of(address.bucket);
  out.endpoint = options.endpoint.empty()
                     ? client.settings().endpoint("s3", out.region)
                     : options.endpoint;
  // A name with dots does not fit the certificate of a virtual host.
  const bool as_host =
      options.addressing == S3Addressing::kVirtual ||
      (options.addressing == S3Addressing::kAuto && is_aws(out.endpoint) &&
       address.bucket.find('.') == std::string::npos);
  if (as_host) {
    const size_t begin = out.endpoint.find("://");
    out.endpoint.insert(
        begin == std::string::npos ? 0 : begin + 3, address.bucket + ".");
    out.path = "/" + address.key;
  } else {
    out.path = address.key.empty()
                   ? "/" + address.bucket
                   : fmt::format("/{}/{}", address.bucket, address.key);
  }
  return out;
}

Result<AwsReply> S3::State::send(AwsRequest& asked, const S3Address& address) {
  LOCKSTEP_ASSIGN(AwsReply reply, client.send(asked));
  if (!reply.fault || reply.fault->fault_class != FaultClass::kRegion ||
      reply.fault->region.empty() || reply.fault->region == asked.region) {
    return reply;
  }
  {
    const std::lock_guard lock(mutex);
    regions[address.bucket] = reply.fault->region;
  }
  const AwsRequest there =
      request(asked.method.c_str(), asked.action.c_str() + 3, address);
  asked.region = there.region;
  asked.endpoint = there.endpoint;
  asked.path = there.path;
  if (asked.rewind) {
    asked.rewind();
  }
  return client.send(asked);
}

Result<AwsReply> S3::State::call(AwsRequest& asked, const S3Address& address) {
  LOCKSTEP_ASSIGN(AwsReply reply, send(asked, address));
  if (!reply.fault) {
    return reply;
  }
  Error error = reply.fault->to_error(asked.action, asked.subject);
  if (reply.attempts > 1 && error.retry()) {
    return std::move(error).with_context(
        fmt::format("tried {} times", reply.attempts));
  }
  return error;
}

Result<S3Object> S3::State::head(const S3Address& address) {
  AwsRequest asked = request("HEAD", "GetObject", address);
  LOCKSTEP_ASSIGN(const AwsReply reply, call(asked, address));
  return object_of(reply, address.key);
}

Result<AwsReply> S3::State::get_into(
    const S3Address& address,
    const std::string& range,
    const std::string& etag,
    BodyTarget& target,
    const std::function<void()>& rewind) {
  AwsRequest asked = request("GET", "GetObject", address);
  asked.headers.emplace_back("Range", range);
  if (!etag.empty()) {
    asked.headers.emplace_back("If-Match", '"' + etag + '"');
  }
  asked.target = &target;
  asked.rewind = rewind;
  return call(asked, address);
}

Result<std::string> S3::State::get_checked(
    const S3Address& address,
    S3Object& object) {
  for (int attempt = 1;; ++attempt) {
    std::string bytes;
    AwsRequest asked = request("GET", "GetObject", address);
    asked.sink = [&](std::string_view piece) {
      bytes += piece;
      return true;
    };
    asked.rewind = [&] { bytes.clear(); };
    LOCKSTEP_ASSIGN(const AwsReply reply, call(asked, address));
    object = object_of(reply, address.key);
    object.size = bytes.size();
    auto checked = check_content(address, object, bytes);
    if (checked) {
      return bytes;
    }
    if (attempt == 2) {
      return std::move(checked.error());
    }
  }
}

Result<std::string> S3::State::put(
    const S3Address& address,
    std::string_view bytes,
    const S3Condition& condition) {
  AwsRequest asked = request("PUT", "PutObject", address);
  asked.body = bytes;
  const std::string crc = crc_text(crc32c(bytes));
  asked.headers.emplace_back(std::string(kMetadata) + kCrcName, crc);
  if (is_https()) {
    asked.headers.emplace_back("Content-MD5", content_md5(md5_hex(bytes)));
  }
  add_condition(asked, condition);
  LOCKSTEP_ASSIGN(const AwsReply reply, send(asked, address));
  if (!reply.fault) {
    return object_of(reply, address.key).etag;
  }
  if (reply.fault->fault_class == FaultClass::kConflict && reply.attempts > 1) {
    // The first attempt may have arrived, and its answer not.
    const auto there = head(address);
    if (there && there->size == bytes.size() && is_md5(there->etag) &&
        there->etag == md5_hex(bytes)) {
      return there->etag;
    }
  }
  return reply.fault->to_error(asked.action, asked.subject);
}

Result<void> S3::State::list(
    const S3Address& address,
    const std::function<Result<void>(S3Object)>& each) {
  std::string token;
  while (true) {
    AwsRequest asked =
        request("GET", "ListBucket", S3Address{address.bucket, ""});
    asked.subject = address.to_string();
    asked.query = {
        {"list-type", "2"}, {"encoding-type", "url"}, {"prefix", address.key}};
    if (!token.empty()) {
      asked.query.emplace_back("continuation-token", token);
    }
    asked.expect_xml = true;
    LOCKSTEP_ASSIGN(
        const AwsReply reply, call(asked, S3Address{address.bucket, ""}));
    auto page = read_list(*reply.xml);
    if (!page) {
      return std::move(page.error())
          .with_context(asked.action + " " + asked.subject);
    }
    for (auto& object : page->objects) {
      LOCKSTEP_TRY(each(std::move(object)));
    }
    if (page->next.empty()) {
      return {};
    }
    if (page->next == token) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format(
              "{} {}: the server gives the same page again",
              asked.action,
              asked.subject));
    }
    token = page->next;
  }
}

S3::S3(S3Options options)
    : state_(std::make_unique<State>(std::move(options))) {}
S3::~S3() = default;

Result<S3Object> S3::head(const S3Address& address) {
  return state_->head(address);
}

Result<std::string> S3::get(const S3Address& address, S3Object* object) {
  S3Object found;
  LOCKSTEP_ASSIGN(std::string bytes, state_->get_checked(address, found));
  if (object != nullptr) {
    *object = std::move(found);
  }
  return bytes;
}

Result<std::string> S3::put(
    const S3Address& address,
    std::string_view bytes,
    const S3Condition& condition) {
  return state_->put(address, bytes, condition);
}

Result<void> S3::remove(const S3Address& address) {
  AwsRequest asked = state_->request("DELETE", "DeleteObject", address);
  LOCKSTEP_ASSIGN(const AwsReply reply, state_->send(asked, address));
  if (reply.fault && reply.fault->code != "NoSuchKey") {
    return reply.fault->to_error(asked.action, asked.subject);
  }
  return {};
}

Result<void> S3::list(
    const S3Address& address,
    const std::function<Result<void>(S3Object)>& each) {
  return state_->list(address, each);
}

Result<void> S3::make_bucket(const std::string& bucket) {
  const S3Address address{bucket, ""};
  AwsRequest asked = state_->request("PUT", "CreateBucket", address);
  std::string body;
  if (asked.region != "us-east-1") {
    body = fmt::format(
        "<CreateBucketConfiguration "
        "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        "<LocationConstraint>{}</LocationConstraint>"
        "</CreateBucketConfiguration>",
        asked.region);
  }
  asked.body = body;
  LOCKSTEP_TRY(state_->call(asked, address));
  return {};
}

Result<Transferred> S3::upload(
    const os::Path& from,
    const S3Address& to,
    const TransferOptions& options) {
  return state_->upload(from, to, options);
}

Result<Transferred> S3::download(
    const S3Address& from,
    const os::Path& to,
    const TransferOptions& options) {
  LOCKSTEP_ASSIGN(const S3Object object, state_->head(from));
  return state_->download(object, from, to, options);
}

}  // namespace lockstep::fetch
