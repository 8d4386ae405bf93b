#pragma once

// What a cloud answered when it refused, and the class that decides what
// comes next. The cloud's own words are kept, never relabelled. All knowledge
// about codes is here: S3, EC2, STS and pricing share it. Pure.

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/fetch/http_exchange.h"

namespace lockstep::fetch {

enum class FaultClass {
  kThrottled,    // SlowDown, RequestLimitExceeded, 429, 503: wait and repeat
  kServer,       // 500, 502, 504, InternalError: repeat
  kClockSkew,    // our clock is wrong: learn the server's, repeat once
  kExpired,      // a temporary key is over: fetch it anew, repeat once
  kCredentials,  // unknown key, wrong signature, malformed token
  kPermission,   // known, but not allowed to
  kNotFound,     // also InvalidInstanceID.NotFound, which may be "not yet"
  kConflict,     // 409 and a condition (412) that does not hold
  kRegion,       // the bucket is elsewhere
  kCapacity,     // the zone has none of these now
  kQuota,        // the account may not have more
  kInvalid,      // the request itself; the user or we must change it
};
std::string_view to_string(FaultClass fault_class);

struct AwsFault {
  FaultClass fault_class = FaultClass::kInvalid;
  int status = 0;
  std::string code;     // "NoSuchBucket", "InsufficientInstanceCapacity"
  std::string message;  // the cloud's own, "" when it sent none
  std::string request_id;
  std::string region;  // where the bucket is, with kRegion
  Duration retry_after{};

  // "s3:PutObject s3://b/k: Access Denied (AccessDenied, 403, request 7F)",
  // with what to do next by class.
  Error to_error(const std::string& action, const std::string& subject) const;
};

// Reads XML of S3 (<Error>), of EC2 (<Response><Errors>), of STS
// (<ErrorResponse>) and JSON ({"__type":..}); other bodies give the status.
AwsFault read_fault(const HttpResponse& response);

FaultClass
classify(int status, std::string_view code, std::string_view message);

}  // namespace lockstep::fetch
