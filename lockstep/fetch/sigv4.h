#pragma once

// AWS Signature Version 4, own canonical request: queries are sorted and
// encoded here, keys of objects are not normalised (S3 takes "a/../b" as it
// is). Pure: time and credentials come in, headers come out. Checked against
// AWS's published examples and against botocore (tests/test_s3.py).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/fetch/http_exchange.h"
#include "lockstep/fetch/secret.h"

namespace lockstep::fetch {

using Query = std::vector<std::pair<std::string, std::string>>;

// RFC 3986: all but letters, digits and -._~ as %XX; a slash too, unless kept.
std::string uri_encode(std::string_view text, bool keep_slash = false);
// "a=1&b=2", encoded and sorted: as it is signed and as it is sent.
std::string encode_query(const Query& query);

std::string sha256_hex(std::string_view bytes);

// What takes the place of a body's hash where TLS guards it already.
inline constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct SigningInput {
  std::string method;
  std::string host;        // with the port unless it is the scheme's own
  std::string path = "/";  // plain, not encoded
  Query query;             // plain
  Headers headers;         // all of them are signed, with Host
  std::string payload_hash;
  std::string service;  // "s3"
  std::string region;   // "eu-west-1"
  int64_t unix_seconds = 0;
};

struct SigningKeys {
  std::string key_id;
  Secret secret;
  Secret session_token;  // may be empty
};

// The headers of the input, then Host, X-Amz-Date, X-Amz-Content-Sha256 (S3
// alone), X-Amz-Security-Token where there is one, and Authorization.
Headers sign(const SigningInput& input, const SigningKeys& keys);

// For tests: what sign() hashes. Holds the token, so never for a log.
std::string canonical_request(
    const SigningInput& input,
    const Headers& signed_headers);

// "20150830T123600Z".
std::string amz_date(int64_t unix_seconds);

}  // namespace lockstep::fetch
