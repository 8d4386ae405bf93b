#include "lockstep/fetch/aws_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "lockstep/fetch/xml.h"

namespace lockstep::fetch {
namespace {

struct Known {
  std::string_view code;
  FaultClass fault_class;
};

constexpr std::array kKnown = {
    Known{"SlowDown", FaultClass::kThrottled},
    Known{"Throttling", FaultClass::kThrottled},
    Known{"ThrottlingException", FaultClass::kThrottled},
    Known{"ThrottledException", FaultClass::kThrottled},
    Known{"RequestThrottled", FaultClass::kThrottled},
    Known{"RequestThrottledException", FaultClass::kThrottled},
    Known{"RequestLimitExceeded", FaultClass::kThrottled},
    Known{"TooManyRequestsException", FaultClass::kThrottled},
    Known{"BandwidthLimitExceeded", FaultClass::kThrottled},
    Known{"EC2ThrottledException", FaultClass::kThrottled},
    Known{"ServiceUnavailable", FaultClass::kThrottled},
    Known{"Unavailable", FaultClass::kThrottled},
    Known{"InternalError", FaultClass::kServer},
    Known{"InternalFailure", FaultClass::kServer},
    Known{"RequestTimeout", FaultClass::kServer},
    Known{"RequestTimeoutException", FaultClass::kServer},
    Known{"IncompleteBody", FaultClass::kServer},
    Known{"BadDigest", FaultClass::kServer},
    Known{"XAmzContentSHA256Mismatch", FaultClass::kServer},
    Known{"RequestTimeTooSkewed", FaultClass::kClockSkew},
    Known{"RequestExpired", FaultClass::kClockSkew},
    Known{"RequestInTheFuture", FaultClass::kClockSkew},
    Known{"ExpiredToken", FaultClass::kExpired},
    Known{"ExpiredTokenException", FaultClass::kExpired},
    Known{"TokenRefreshRequired", FaultClass::kExpired},
    Known{"InvalidAccessKeyId", FaultClass::kCredentials},
    Known{"InvalidClientTokenId", FaultClass::kCredentials},
    Known{"UnrecognizedClientException", FaultClass::kCredentials},
    Known{"SignatureDoesNotMatch", FaultClass::kCredentials},
    Known{"InvalidSignatureException", FaultClass::kCredentials},
    Known{"AuthFailure", FaultClass::kCredentials},
    Known{"InvalidToken", FaultClass::kCredentials},
    Known{"MissingAuthenticationToken", FaultClass::kCredentials},
    Known{"IncompleteSignature", FaultClass::kCredentials},
    Known{"OptInRequired", FaultClass::kPermission},
    Known{"AccessDenied", FaultClass::kPermission},
    Known{"AccessDeniedException", FaultClass::kPermission},
    Known{"AllAccessDisabled", FaultClass::kPermission},
    Known{"AccountProblem", FaultClass::kPermission},
    Known{"UnauthorizedOperation", FaultClass::kPermission},
    Known{"NoSuchKey", FaultClass::kNotFound},
    Known{"NoSuchBucket", FaultClass::kNotFound},
    Known{"NoSuchUpload", FaultClass::kNotFound},
    Known{"PreconditionFailed", FaultClass::kConflict},
    Known{"ConditionalRequestConflict", FaultClass::kConflict},
    Known{"OperationAborted", FaultClass::kConflict},
    Known{"BucketAlreadyExists", FaultClass::kConflict},
    Known{"BucketAlreadyOwnedByYou", FaultClass::kConflict},
    Known{"IdempotentParameterMismatch", FaultClass::kConflict},
    Known{"DependencyViolation", FaultClass::kConflict},
    Known{"IncorrectInstanceState", FaultClass::kConflict},
    Known{"PermanentRedirect", FaultClass::kRegion},
    Known{"TemporaryRedirect", FaultClass::kRegion},
    Known{"AuthorizationHeaderMalformed", FaultClass::kRegion},
    Known{"InsufficientInstanceCapacity", FaultClass::kCapacity},
    Known{"InsufficientHostCapacity", FaultClass::kCapacity},
    Known{"InsufficientReservedInstanceCapacity", FaultClass::kCapacity},
    Known{"InsufficientCapacity", FaultClass::kCapacity},
    Known{"InsufficientFreeAddressesInSubnet", FaultClass::kCapacity},
    Known{"InsufficientVolumeCapacity", FaultClass::kCapacity},
    Known{"UnfulfillableCapacity", FaultClass::kCapacity},
    Known{"SpotMaxPriceTooLow", FaultClass::kCapacity},
    Known{"HostLimitExceeded", FaultClass::kQuota},
    Known{"InstanceLimitExceeded", FaultClass::kQuota},
    Known{"VcpuLimitExceeded", FaultClass::kQuota},
    Known{"MaxSpotInstanceCountExceeded", FaultClass::kQuota},
    Known{"MaxSpotFleetRequestCountExceeded", FaultClass::kQuota},
    Known{"VolumeLimitExceeded", FaultClass::kQuota},
    Known{"AddressLimitExceeded", FaultClass::kQuota},
    Known{"SecurityGroupLimitExceeded", FaultClass::kQuota},
    Known{"ResourceLimitExceeded", FaultClass::kQuota},
    Known{"ServiceQuotaExceededException", FaultClass::kQuota},
};

FaultClass class_of_status(int status) {
  switch (status) {
    case 429:
    case 503:
      return FaultClass::kThrottled;
    case 408:
      return FaultClass::kServer;
    case 401:
      return FaultClass::kCredentials;
    case 403:
      return FaultClass::kPermission;
    case 404:
    case 410:
      return FaultClass::kNotFound;
    case 409:
    case 412:
      return FaultClass::kConflict;
    case 301:
    case 307:
      return FaultClass::kRegion;
    default:
      return status >= 500 ? FaultClass::kServer : FaultClass::kInvalid;
  }
}

void read_xml_fault(const pugi::xml_node& root, AwsFault& fault) {
  pugi::xml_node error = root.child("Error");  // S3, and moto for EC2
  for (const char* path :
       {"Response/Errors/Error",
        "ErrorResponse/Error",
        "ErrorResponse/Errors/Error"}) {
    if (!error) {
      error = root.first_element_by_path(path);
    }
  }
  fault.code = xml_text(error, "Code");
  fault.message = xml_text(error, "Message");
  fault.region = xml_text(error, "Region");
  fault.request_id = xml_text(error, "RequestId");
  for (const char* path :
       {"Response/RequestID", "ErrorResponse/RequestId", "RequestId"}) {
    if (fault.request_id.empty()) {
      fault.request_id = xml_text(root, path);
    }
  }
}

void read_json_fault(const std::string& body, AwsFault& fault) {
  const auto document = nlohmann::json::parse(body, nullptr, false);
  if (!document.is_object()) {
    return;
  }
  for (const char* name : {"__type", "code", "Code"}) {
    if (const auto found = document.find(name);
        fault.code.empty() && found != document.end() && found->is_string()) {
      fault.code = found->get<std::string>();
    }
  }
  for (const char* name : {"message", "Message", "errorMessage"}) {
    if (const auto found = document.find(name); fault.message.empty() &&
                                                found != document.end() &&
                                                found->is_string()) {
      fault.message = found->get<std::string>();
    }
  }
}

struct Advice {
  ErrorCode code;
  bool retry;
};

Advice advice(FaultClass fault_class) {
  switch (fault_class) {
    case FaultClass::kThrottled:
    case FaultClass::kServer:
    case FaultClass::kCapacity:
      return {ErrorCode::kUnavailable, true};
    case FaultClass::kQuota:
      return {ErrorCode::kUnavailable, false};
    case FaultClass::kClockSkew:
    case FaultClass::kExpired:
    case FaultClass::kCredentials:
    case FaultClass::kPermission:
      return {ErrorCode::kPermission, false};
    case FaultClass::kNotFound:
      return {ErrorCode::kNotFound, false};
    case FaultClass::kConflict:
      return {ErrorCode::kExists, false};
    case FaultClass::kRegion:
    case FaultClass::kInvalid:
      break;
  }
  return {ErrorCode::kInvalidInput, false};
}

std::string fix_for(const AwsFault& fault, const std::string& action) {
  switch (fault.fault_class) {
    case FaultClass::kClockSkew:
      return "set this machine's clock: requests are signed with the time";
    case FaultClass::kExpired:
      return "log in again or renew the temporary keys";
    case FaultClass::kCredentials:
      return "check the access key, its secret and the session token "
             "(environment, AWS_PROFILE, ~/.aws/credentials)";
    case FaultClass::kPermission:
      return fmt::format("allow {} in the policy of this user or role", action);
    case FaultClass::kRegion:
      return fault.region.empty() ? "name the region of the bucket (AWS_REGION)"
                                  : fmt::format(
                                        "it is in {}: set AWS_REGION={}",
                                        fault.region,
                                        fault.region);
    case FaultClass::kCapacity:
      return "try another type or zone, or later";
    case FaultClass::kQuota:
      return "ask the cloud for a higher quota, or use fewer or smaller "
             "machines";
    case FaultClass::kNotFound:
      return fault.code == "NoSuchBucket"
                 ? "check the name of the bucket and the endpoint"
                 : "";
    default:
      return "";
  }
}

}  // namespace

std::string_view to_string(FaultClass fault_class) {
  switch (fault_class) {
    case FaultClass::kThrottled:
      return "throttled";
    case FaultClass::kServer:
      return "server";
    case FaultClass::kClockSkew:
      return "clock skew";
    case FaultClass::kExpired:
      return "expired";
    case FaultClass::kCredentials:
      return "credentials";
    case FaultClass::kPermission:
      return "permission";
    case FaultClass::kNotFound:
      return "not found";
    case FaultClass::kConflict:
      return "conflict";
    case FaultClass::kRegion:
      return "region";
    case FaultClass::kCapacity:
      return "capacity";
    case FaultClass::kQuota:
      return "quota";
    case FaultClass::kInvalid:
      return "invalid";
  }
  return "unknown";
}

FaultClass
classify(int status, std::string_view code, std::string_view message) {
  // "Signature expired: 20150830T123600Z is now earlier than ..." comes with
  // the code of a wrong signature.
  if ((code == "InvalidSignatureException" ||
       code == "SignatureDoesNotMatch") &&
      (message.starts_with("Signature expired") ||
       message.starts_with("Signature not yet current"))) {
    return FaultClass::kClockSkew;
  }
  const auto* const found =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) {
        return known.code == code;
      });
  if (found != kKnown.end()) {
    return found->fault_class;
  }
  // EC2's InvalidInstanceID.NotFound, InvalidGroup.NotFound, ...
  if (code.ends_with(".NotFound")) {
    return FaultClass::kNotFound;
  }
  if (code.ends_with(".Duplicate") || code.ends_with(".InUse")) {
    return FaultClass::kConflict;
  }
  return class_of_status(status);
}

AwsFault read_fault(const HttpResponse& response) {
  AwsFault fault;
  fault.status = response.status;
  if (response.body.find_first_not_of(" \t\r\n") != std::string::npos) {
    if (const auto document = parse_xml(response.body)) {
      read_xml_fault(**document, fault);
    } else {
      read_json_fault(response.body, fault);
    }
  }
  if (fault.code.empty()) {
    fault.code = response.header("x-amzn-errortype");
  }
  // "com.amazonaws.x#ThrottlingException:http://..." is its middle.
  fault.code = fault.code.substr(0, fault.code.find(':'));
  fault.code = fault.code.substr(fault.code.rfind('#') + 1);
  if (fault.request_id.empty()) {
    fault.request_id = response.header("x-amz-request-id");
  }
  if (fault.region.empty()) {
    fault.region = response.header("x-amz-bucket-region");
  }
  const std::string& after = response.header("retry-after");
  int seconds = 0;
  std::from_chars(after.data(), after.data() + after.size(), seconds);
  fault.retry_after = std::chrono::seconds(std::clamp(seconds, 0, 3600));
  fault.fault_class = classify(fault.status, fault.code, fault.message);
  // HEAD has no body: the header is all there is.
  if (fault.code.empty() && fault.status == 400 && !fault.region.empty()) {
    fault.fault_class = FaultClass::kRegion;
  }
  return fault;
}

Error AwsFault::to_error(const std::string& action, const std::string& subject)
    const {
  std::string text = subject.empty() ? action : action + " " + subject;
  text += ": ";
  text +=
      message.empty() ? fmt::format("the server answered {}", status) : message;
  std::string detail = code;
  if (!code.empty() && !message.empty()) {
    detail += fmt::format(", {}", status);
  }
  if (!request_id.empty()) {
    detail +=
        fmt::format("{}request {}", detail.empty() ? "" : ", ", request_id);
  }
  if (!detail.empty()) {
    text += " (" + detail + ")";
  }
  const Advice given = advice(fault_class);
  Error error = Error(given.code, text).with_fix(fix_for(*this, action));
  return given.retry ? std::move(error).with_retry() : std::move(error);
}

}  // namespace lockstep::fetch
