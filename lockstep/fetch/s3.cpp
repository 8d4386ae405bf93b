#include "lockstep/fetch/s3.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/http_date.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/s3_xml.h"

namespace lockstep::fetch {
namespace {

constexpr std::string_view kMetadata = "x-amz-meta-";

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

std::string md5_hex(std::string_view bytes) {
  Digest digest(ChecksumKind::kMd5);
  digest.update(bytes);
  return digest.finish();
}

}  // namespace

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
  return out;
}

std::string crc_text(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

bool is_md5(const std::string& etag) {
  return etag.size() == 32 &&
         etag.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string content_md5(const std::string& md5_hex) {
  std::array<unsigned char, 16> hash{};
  LOCKSTEP_CHECK_EQ(md5_hex.size(), 2 * hash.size());
  for (size_t i = 0; i < hash.size(); ++i) {
    std::from_chars(
        md5_hex.data() + 2 * i, md5_hex.data() + 2 * i + 2, hash[i], 16);
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

Result<AwsReply> S3::State::get(
    const S3Address& address,
    const std::string& range,
    const std::string& etag,
    const std::function<bool(std::string_view)>& sink,
    const std::function<void()>& rewind) {
  AwsRequest asked = request("GET", "GetObject", address);
  if (!range.empty()) {
    asked.headers.emplace_back("Range", range);
  }
  if (!etag.empty()) {
    asked.headers.emplace_back("If-Match", '"' + etag + '"');
  }
  asked.sink = sink;
  asked.rewind = rewind;
  return call(asked, address);
}

Result<std::string> S3::State::get_checked(
    const S3Address& address,
    S3Object& object) {
  for (int attempt = 1;; ++attempt) {
    std::string bytes;
    LOCKSTEP_ASSIGN(
        const AwsReply reply,
        get(
            address,
            "",
            "",
            [&](std::string_view piece) {
              bytes += piece;
              return true;
            },
            [&] { bytes.clear(); }));
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
