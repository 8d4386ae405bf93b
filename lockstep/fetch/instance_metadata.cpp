#include "lockstep/fetch/instance_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <mutex>

#include "lockstep/base/text.h"

namespace lockstep::fetch {
namespace {

constexpr int kAttempts = 3;
constexpr Duration kPatience = std::chrono::seconds(1);
constexpr Duration kTokenLife = std::chrono::hours(6);

bool is_on(const std::string& value) {
  const std::string text = lower(value);
  return text == "true" || text == "1";
}

}  // namespace

struct InstanceMetadata::State {
  HttpTransport* transport = nullptr;
  os::Clock* clock = nullptr;
  std::string endpoint = "http://169.254.169.254";
  bool disabled = false;
  std::mutex mutex;
  std::string token;
  os::Deadline token_end = os::Deadline::never();

  HttpRequest request(const std::string& method, const std::string& path)
      const {
    HttpRequest out;
    out.method = method;
    out.url = endpoint + "/latest/" + path;
    out.direct = true;
    out.connect_timeout = kPatience;
    out.total_timeout = 2 * kPatience;
    return out;
  }
  Result<HttpResponse> try_often(const HttpRequest& request);
  Result<void> renew_token();
  Result<std::string> get(const std::string& path);
};

Result<HttpResponse> InstanceMetadata::State::try_often(
    const HttpRequest& request) {
  for (int attempt = 1;; ++attempt) {
    auto response = transport->exchange(request);
    // Nobody there is the answer on a machine that is no instance.
    const bool again =
        response ? response->status >= 500
                 : response.error().retry() &&
                       response.error().code() != ErrorCode::kUnavailable;
    if (!again || attempt == kAttempts) {
      return response;
    }
    clock->sleep_for(std::chrono::milliseconds(100) * attempt);
  }
}

Result<void> InstanceMetadata::State::renew_token() {
  if (!token.empty() && !token_end.passed(*clock)) {
    return {};
  }
  HttpRequest ask = request("PUT", "api/token");
  ask.headers.emplace_back(
      "X-aws-ec2-metadata-token-ttl-seconds",
      std::to_string(
          std::chrono::seconds(
              std::chrono::duration_cast<std::chrono::seconds>(kTokenLife))
              .count()));
  LOCKSTEP_ASSIGN(const HttpResponse response, try_often(ask));
  if (response.status != 200 || response.body.empty()) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format(
            "the instance's metadata service at {} gave no token: it answered "
            "{}",
            endpoint,
            response.status));
  }
  token = response.body;
  token_end = os::Deadline::after(kTokenLife - std::chrono::minutes(5), *clock);
  return {};
}

Result<std::string> InstanceMetadata::State::get(const std::string& path) {
  if (disabled) {
    return Error(
        ErrorCode::kPermission,
        "the instance's metadata service is switched off by "
        "AWS_EC2_METADATA_DISABLED");
  }
  for (bool renewed = false;; renewed = true) {
    LOCKSTEP_TRY(renew_token());
    HttpRequest ask = request("GET", path);
    ask.headers.emplace_back("X-aws-ec2-metadata-token", token);
    LOCKSTEP_ASSIGN(HttpResponse response, try_often(ask));
    if (response.status == 200) {
      return std::move(response.body);
    }
    if (response.status == 401 && !renewed) {
      token.clear();  // the service was restarted, or the clock jumped
      continue;
    }
    return Error(
        response.status == 404 ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
        fmt::format(
            "the instance's metadata service at {} answered {} to {}",
            endpoint,
            response.status,
            path));
  }
}

InstanceMetadata::InstanceMetadata(
    const AwsSettings& settings,
    HttpTransport& transport,
    os::Clock& clock)
    : state_(std::make_unique<State>()) {
  state_->transport = &transport;
  state_->clock = &clock;
  std::string endpoint = settings.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  if (!endpoint.empty()) {
    state_->endpoint = endpoint;
  }
  state_->disabled = is_on(settings.variable("AWS_EC2_METADATA_DISABLED"));
}
InstanceMetadata::~InstanceMetadata() = default;

Result<std::string> InstanceMetadata::get(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  return state_->get(path);
}

const std::string& InstanceMetadata::endpoint() const {
  return state_->endpoint;
}

}  // namespace lockstep::fetch
