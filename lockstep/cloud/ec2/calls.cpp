#include "lockstep/cloud/ec2/calls.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <set>

namespace lockstep::cloud::ec2 {
namespace {

constexpr const char* kVersion = "2016-11-15";
// A cloud that gives the same page for ever must not hold us for ever.
constexpr int kMostPages = 10000;

Failure failure_for(const fetch::AwsFault& fault) {
  // What EC2 says as a plain refusal and what another place may do after all,
  // or this one later.
  static const std::set<std::string, std::less<>> kElsewhere = {
      "InsufficientInstanceCapacity",
      "InsufficientHostCapacity",
      "InsufficientReservedInstanceCapacity",
      "InsufficientFreeAddressesInSubnet",
      "InsufficientAddressCapacity",
      "SpotMaxPriceTooLow",
  };
  static const std::set<std::string, std::less<>> kLater = {
      "DependencyViolation",
      "InvalidGroup.InUse",
      "VolumeInUse",
      "IncorrectState",
      "IncorrectInstanceState",
      "ConcurrentTagAccess",
  };
  if (kElsewhere.contains(fault.code) ||
      (fault.code == "Unsupported" &&
       fault.message.find("Availability Zone") != std::string::npos)) {
    return Failure::kCapacity;
  }
  if (kLater.contains(fault.code)) {
    return Failure::kTransient;
  }
  // The JSON services have words of their own.
  if (fault.code == "NoSuchResourceException" ||
      fault.code == "ParameterNotFound") {
    return Failure::kNotFound;
  }
  switch (fault.fault_class) {
    case fetch::FaultClass::kThrottled:
      return Failure::kThrottled;
    case fetch::FaultClass::kServer:
      return Failure::kTransient;
    case fetch::FaultClass::kClockSkew:
    case fetch::FaultClass::kExpired:
    case fetch::FaultClass::kCredentials:
      return Failure::kCredentials;
    case fetch::FaultClass::kPermission:
      return Failure::kPermission;
    case fetch::FaultClass::kNotFound:
      return Failure::kNotFound;
    case fetch::FaultClass::kCapacity:
      return Failure::kCapacity;
    case fetch::FaultClass::kQuota:
      return Failure::kQuota;
    case fetch::FaultClass::kConflict:
    case fetch::FaultClass::kRegion:
    case fetch::FaultClass::kInvalid:
      return Failure::kBadRequest;
  }
  return Failure::kBadRequest;
}

// Without an answer: the way there failed, or nobody could sign.
Error unanswered(fetch::AwsClient& client, Error error) {
  if (error.code() == ErrorCode::kInterrupted || failure_of(error)) {
    return error;
  }
  if (auto keys = client.credentials(); !keys) {
    std::string fix = keys.error().fix();
    Error refused = cloud_error(Failure::kCredentials, keys.error().message());
    return fix.empty() ? refused : std::move(refused).with_fix(fix);
  }
  return classed(std::move(error));
}

}  // namespace

Call::Call(const std::string& action, std::string subject)
    : action_(action), subject_(std::move(subject)) {}

Call& Call::add(const std::string& name, const std::string& value) {
  parameters_.emplace_back(name, value);
  return *this;
}

Call& Call::add_list(
    const std::string& name,
    const std::vector<std::string>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    add(fmt::format("{}.{}", name, i + 1), values[i]);
  }
  return *this;
}

Call& Call::filter(
    const std::string& name,
    const std::vector<std::string>& values) {
  const std::string prefix = fmt::format("Filter.{}", ++num_filters_);
  add(prefix + ".Name", name);
  return add_list(prefix + ".Value", values);
}

Call& Call::filter_tags(const Tags& tags) {
  for (const auto& [key, value] : tags) {
    if (value.empty()) {
      filter("tag-key", {key});
    } else {
      filter("tag:" + key, {value});
    }
  }
  return *this;
}

Call& Call::tag(const std::string& resource_type, const Tags& tags) {
  if (tags.empty()) {
    return *this;
  }
  const std::string prefix = fmt::format("TagSpecification.{}", ++num_tags_);
  add(prefix + ".ResourceType", resource_type);
  int number = 0;
  for (const auto& [key, value] : tags) {
    ++number;
    add(fmt::format("{}.Tag.{}.Key", prefix, number), key);
    add(fmt::format("{}.Tag.{}.Value", prefix, number), value);
  }
  return *this;
}

Call& Call::wait_for(std::vector<std::string> codes) {
  not_yet_ = std::move(codes);
  return *this;
}

fetch::AwsRequest Call::request(const std::string& region) const {
  fetch::AwsRequest request = fetch::query_request("ec2", kVersion, action_);
  for (const auto& [name, value] : parameters_) {
    fetch::add_parameter(request, name, value);
  }
  request.region = region;
  request.subject = subject_;
  request.expect_xml = true;
  request.not_yet = not_yet_;
  return request;
}

Result<Reply> send(
    fetch::AwsClient& client,
    const std::string& region,
    const Call& call,
    fetch::AwsFault* fault) {
  const fetch::AwsRequest request = call.request(region);
  auto reply = client.send(request);
  if (!reply) {
    return unanswered(client, std::move(reply.error()))
        .with_context(request.action);
  }
  if (reply->fault) {
    if (fault != nullptr) {
      *fault = *reply->fault;
    }
    return refusal(*reply->fault, request.action, request.subject);
  }
  if (!reply->xml) {
    return cloud_error(
        Failure::kTransient,
        fmt::format("{}: the answer is not XML", request.action));
  }
  const pugi::xml_node root = reply->xml->document_element();
  return Reply{std::move(reply->xml), root};
}

Result<std::string> send_json(
    fetch::AwsClient& client,
    const std::string& region,
    const std::string& service,
    const std::string& target,
    const std::string& body) {
  fetch::AwsRequest request = fetch::json_request(service, target, body);
  request.region = region;
  // The price list has an address of its own.
  if (service == "pricing" && !client.settings().custom_endpoint(service)) {
    request.endpoint = "https://api.pricing." + region + ".amazonaws.com";
  }
  auto reply = client.send(request);
  if (!reply) {
    return unanswered(client, std::move(reply.error()))
        .with_context(request.action);
  }
  if (reply->fault) {
    return refusal(*reply->fault, request.action, request.subject);
  }
  return std::move(reply->body);
}

Result<void> each_item(
    fetch::AwsClient& client,
    const std::string& region,
    Call call,
    const char* list,
    int page,
    const std::function<Result<void>(const pugi::xml_node&)>& item) {
  if (page > 0) {
    call.add("MaxResults", std::to_string(page));
  }
  std::string token;
  for (int number = 0; number < kMostPages; ++number) {
    Call one = call;
    if (!token.empty()) {
      one.add("NextToken", token);
    }
    LOCKSTEP_ASSIGN(const Reply reply, send(client, region, one));
    for (const pugi::xml_node& node : reply.root.child(list).children("item")) {
      LOCKSTEP_TRY(item(node));
    }
    std::string next = fetch::xml_text(reply.root, "nextToken");
    if (next.empty()) {
      return {};
    }
    if (next == token) {
      break;
    }
    token = std::move(next);
  }
  return cloud_error(
      Failure::kTransient,
      fmt::format("ec2:{}: its pages do not end", call.action()));
}

Error refusal(
    const fetch::AwsFault& fault,
    const std::string& action,
    const std::string& subject) {
  const Error words = fault.to_error(action, subject);
  const Failure failure = failure_for(fault);
  Error error = cloud_error(failure, words.message());
  if (!words.fix().empty()) {
    return std::move(error).with_fix(words.fix());
  }
  if (failure == Failure::kPermission) {
    return std::move(error).with_fix(
        fmt::format("allow {} (the policy is in docs/aws.md)", action));
  }
  return error;
}

Error classed(Error error) {
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
    case ErrorCode::kAborted:
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt: {
      Error passing = cloud_error(Failure::kTransient, error.message());
      return error.fix().empty() ? passing
                                 : std::move(passing).with_fix(error.fix());
    }
    default:
      return error;
  }
}

double parse_time(const std::string& text) {
  std::tm time = {};
  int read = 0;
  if (std::sscanf(
          text.c_str(),
          "%4d-%2d-%2dT%2d:%2d:%2d%n",
          &time.tm_year,
          &time.tm_mon,
          &time.tm_mday,
          &time.tm_hour,
          &time.tm_min,
          &time.tm_sec,
          &read) != 6) {
    return 0;
  }
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  double fraction = 0;
  if (text[static_cast<size_t>(read)] == '.') {
    double digit = 0.1;
    for (size_t i = static_cast<size_t>(read) + 1;
         i < text.size() && text[i] >= '0' && text[i] <= '9';
         ++i, digit /= 10) {
      fraction += digit * (text[i] - '0');
    }
  }
  return static_cast<double>(timegm(&time)) + fraction;
}

}  // namespace lockstep::cloud::ec2
