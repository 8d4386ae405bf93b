#include "lockstep/fetch/aws_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <random>

#include "lockstep/base/check.h"
#include "lockstep/fetch/http_date.h"

namespace lockstep::fetch {
namespace {

// Below this, a refused signature has another reason than the clock.
constexpr Duration kTellingSkew = std::chrono::minutes(4);
constexpr int kThrottledFactor = 5;  // a busy server gets longer pauses
constexpr const char* kNoRegion = "us-east-1";

struct Endpoint {
  std::string scheme;
  std::string host;  // with a port that is not the scheme's own
  std::string base;  // path in front of ours, without a slash at its end
};

Result<Endpoint> parse_endpoint(const std::string& url) {
  Endpoint out;
  const size_t colon = url.find("://");
  if (colon != std::string::npos) {
    out.scheme = url.substr(0, colon);
    const size_t begin = colon + 3;
    const size_t slash = std::min(url.find('/', begin), url.size());
    out.host = url.substr(begin, slash - begin);
    out.base = url.substr(slash);
    while (out.base.ends_with('/')) {
      out.base.pop_back();
    }
  }
  const bool known = out.scheme == "http" || out.scheme == "https";
  if (!known || out.host.empty() ||
      out.host.find_first_of("@?# ") != std::string::npos ||
      out.base.find_first_of("?# ") != std::string::npos) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}' is not an endpoint; write it as https://HOST or "
            "http://HOST:PORT",
            url));
  }
  const std::string own = out.scheme == "https" ? ":443" : ":80";
  if (out.host.ends_with(own)) {
    out.host.resize(out.host.size() - own.size());
  }
  return out;
}

std::string describe(const AwsRequest& request) {
  return request.subject.empty() ? request.action
                                 : request.action + " " + request.subject;
}

bool repeats(FaultClass fault_class) {
  return fault_class == FaultClass::kThrottled ||
         fault_class == FaultClass::kServer;
}

}  // namespace

struct AwsClient::State {
  AwsClientOptions options;
  std::string region;
  std::mutex random_mutex;
  std::mt19937_64 engine{std::random_device{}()};
  std::atomic<int64_t> skew{0};  // nanoseconds the server is ahead

  double random() {
    if (options.random) {
      return options.random();
    }
    const std::lock_guard lock(random_mutex);
    return std::uniform_real_distribution<double>(0, 1)(engine);
  }
  double server_time() const {
    return options.clock->unix_seconds() +
           to_seconds(Duration(skew.load(std::memory_order_relaxed)));
  }
};

namespace {

// One call with its attempts.
class Call {
 public:
  Call(
      AwsClientOptions& options,
      std::atomic<int64_t>& skew,
      std::function<double()> random,
      std::function<double()> server_time,
      const AwsRequest& request,
      const std::string& region)
      : options_(options),
        skew_(skew),
        random_(std::move(random)),
        server_time_(std::move(server_time)),
        request_(request),
        region_(request.region.empty() ? region : request.region),
        deadline_(os::Deadline::after(options.limit, *options.clock)) {}

  Result<AwsReply> run();

 private:
  Result<void> prepare();
  Result<HttpRequest> make() const;
  Result<AwsReply> once();
  bool learn_clock(const AwsReply& reply);
  bool again(const AwsReply& reply, Duration& wait);
  bool again(const Error& error);
  bool pause(Duration at_least, int factor, const std::string& why);
  bool stopped() const { return options_.stopped && options_.stopped(); }

  AwsClientOptions& options_;
  std::atomic<int64_t>& skew_;
  std::function<double()> random_;
  std::function<double()> server_time_;
  const AwsRequest& request_;
  std::string region_;
  os::Deadline deadline_;
  Endpoint endpoint_;
  std::string form_;
  std::string_view body_;
  std::string payload_hash_;
  int attempts_ = 0;
  int pauses_ = 0;
  int unreachable_ = 0;
  bool clock_learned_ = false;
  bool keys_renewed_ = false;
};

Result<void> Call::prepare() {
  const std::string url =
      request_.endpoint.empty()
          ? options_.settings.endpoint(request_.service, region_)
          : request_.endpoint;
  LOCKSTEP_ASSIGN(endpoint_, parse_endpoint(url));
  form_ = encode_query(request_.form);
  // A space is a plus in a form: as the AWS tools send it, which matters to
  // servers that sign anew what they decoded.
  for (size_t at = 0; (at = form_.find("%20", at)) != std::string::npos;) {
    form_.replace(at, 3, 1, '+');
  }
  body_ = request_.form.empty() ? request_.body : std::string_view(form_);
  const bool guarded = request_.service == "s3" &&
                       endpoint_.scheme == "https" &&
                       (!body_.empty() || request_.body_source != nullptr);
  if (guarded) {
    payload_hash_ = kUnsignedPayload;
  } else if (request_.body_source != nullptr) {
    LOCKSTEP_CHECK_EQ(request_.body_sha256.size(), 64U);
    payload_hash_ = request_.body_sha256;
  } else {
    payload_hash_ = sha256_hex(body_);
  }
  return {};
}

Result<HttpRequest> Call::make() const {
  HttpRequest http;
  http.method = request_.method;
  http.body = body_;
  http.body_source = request_.body_source;
  http.sink = request_.sink;
  http.target = request_.target;
  http.stopped = options_.stopped;
  http.connect_timeout = options_.connect_timeout;
  http.stall_timeout = options_.stall_timeout;
  http.total_timeout =
      std::max<Duration>(deadline_.left(*options_.clock), Duration(1));
  http.fresh = request_.fresh || !request_.repeatable;
  http.ca_file = options_.settings.ca_file();
  const std::string path = endpoint_.base + request_.path;
  const std::string query = encode_query(request_.query);
  http.url = fmt::format(
      "{}://{}{}{}{}",
      endpoint_.scheme,
      endpoint_.host,
      uri_encode(path, true),
      query.empty() ? "" : "?",
      query);
  Headers headers = request_.headers;
  if (!request_.form.empty()) {
    headers.emplace_back(
        "Content-Type", "application/x-www-form-urlencoded; charset=utf-8");
  }
  if (!request_.sign) {
    http.headers = std::move(headers);
    return http;
  }
  LOCKSTEP_ASSIGN(const Credentials credentials, options_.credentials->get());
  SigningInput input;
  input.method = request_.method;
  input.host = endpoint_.host;
  input.path = path;
  input.query = request_.query;
  input.headers = std::move(headers);
  input.payload_hash = payload_hash_;
  input.service = request_.service;
  input.region = region_;
  input.unix_seconds = static_cast<int64_t>(std::floor(server_time_()));
  http.headers = fetch::sign(input, credentials.keys);
  return http;
}

Result<AwsReply> Call::once() {
  LOCKSTEP_ASSIGN(const HttpRequest http, make());
  LOCKSTEP_ASSIGN(HttpResponse response, options_.transport->exchange(http));
  AwsReply reply;
  reply.status = response.status;
  reply.headers = response.headers;
  if (response.status < 200 || response.status >= 300) {
    reply.fault = read_fault(response);
  } else if (request_.expect_xml) {
    auto document = parse_xml(response.body);
    if (!document) {
      return Error(
                 ErrorCode::kAborted,
                 fmt::format(
                     "the answer was cut: {}", document.error().message()))
          .with_retry();
    }
    if ((*document)->child("Error")) {
      reply.fault = read_fault(response);
      if (reply.fault->fault_class == FaultClass::kInvalid) {
        reply.fault->fault_class = FaultClass::kServer;
      }
    }
    reply.xml = std::move(*document);
  }
  reply.body = std::move(response.body);
  return reply;
}

// True when the server's clock was another and the call may be made again.
bool Call::learn_clock(const AwsReply& reply) {
  const FaultClass found = reply.fault->fault_class;
  if (clock_learned_ ||
      (found != FaultClass::kClockSkew && found != FaultClass::kCredentials &&
       found != FaultClass::kPermission)) {
    return false;
  }
  const auto date = reply.headers.find("date");
  const auto theirs = date == reply.headers.end()
                          ? std::nullopt
                          : parse_http_date(date->second);
  if (!theirs) {
    return false;
  }
  const Duration wrong =
      from_seconds(static_cast<double>(*theirs) - server_time_());
  if (found != FaultClass::kClockSkew &&
      std::chrono::abs(wrong) < kTellingSkew) {
    return false;
  }
  clock_learned_ = true;
  skew_.store(
      from_seconds(
          static_cast<double>(*theirs) - options_.clock->unix_seconds())
          .count(),
      std::memory_order_relaxed);
  if (options_.say) {
    options_.say(
        fmt::format(
            "{}: this machine's clock is {} off; using the server's",
            describe(request_),
            format_duration(std::chrono::abs(wrong))));
  }
  return true;
}

// Sleeps before the next attempt; false when there is no time for one.
bool Call::pause(Duration at_least, int factor, const std::string& why) {
  const double doubled = std::pow(2.0, std::min(pauses_++, 20));
  const Duration most = std::min<Duration>(
      options_.longest_pause,
      from_seconds(to_seconds(options_.backoff) * factor * doubled));
  const Duration wait = std::max<Duration>(
      std::min(at_least, options_.longest_pause),
      from_seconds(to_seconds(most) * random_()));
  if (wait >= deadline_.left(*options_.clock)) {
    return false;
  }
  if (options_.say) {
    options_.say(
        fmt::format("{}; trying again in {}", why, format_duration(wait)));
  }
  const os::Deadline end = os::Deadline::after(wait, *options_.clock);
  while (!stopped() && !end.passed(*options_.clock)) {
    options_.clock->sleep_for(
        std::min<Duration>(
            end.left(*options_.clock),
            options_.stopped ? Duration(std::chrono::milliseconds(100))
                             : Duration(std::chrono::hours(1))));
  }
  return true;
}

bool Call::again(const AwsReply& reply, Duration& wait) {
  const AwsFault& fault = *reply.fault;
  wait = fault.retry_after;
  const auto& not_yet = request_.not_yet;
  if (std::find(not_yet.begin(), not_yet.end(), fault.code) != not_yet.end()) {
    return true;
  }
  // A server that says 500 may have done it all the same.
  const bool safe =
      request_.repeatable || fault.fault_class == FaultClass::kThrottled;
  return repeats(fault.fault_class) && safe && attempts_ < options_.attempts;
}

bool Call::again(const Error& error) {
  if (!error.retry() || attempts_ >= options_.attempts) {
    return false;
  }
  if (error.code() == ErrorCode::kUnavailable) {
    return ++unreachable_ < options_.connect_attempts;
  }
  return request_.repeatable;
}

Result<AwsReply> Call::run() {
  LOCKSTEP_TRY(prepare());
  while (true) {
    if (stopped()) {
      return Error(ErrorCode::kInterrupted, describe(request_) + ": stopped");
    }
    if (attempts_ > 0 && request_.rewind) {
      request_.rewind();
    }
    ++attempts_;
    Result<AwsReply> result = once();
    if (!result) {
      Error& error = result.error();
      const std::string why =
          fmt::format("{}: {}", describe(request_), error.to_string());
      if (again(error) && pause({}, 1, why)) {
        continue;
      }
      if (!error.retry()) {
        return std::move(error).with_context(describe(request_));
      }
      const auto code = error.code() == ErrorCode::kAborted
                            ? ErrorCode::kUnavailable
                            : error.code();
      return Error(
                 code,
                 attempts_ == 1
                     ? why
                     : fmt::format("{} (tried {} times)", why, attempts_))
          .with_retry();
    }
    result->attempts = attempts_;
    if (!result->fault) {
      return result;
    }
    if (learn_clock(*result)) {
      continue;
    }
    if (result->fault->fault_class == FaultClass::kExpired && !keys_renewed_ &&
        request_.sign) {
      keys_renewed_ = true;
      options_.credentials->drop();
      continue;
    }
    Duration wait{};
    if (again(*result, wait)) {
      const auto text =
          result->fault->to_error(request_.action, request_.subject).message();
      if (pause(wait, kThrottledFactor, text)) {
        continue;
      }
    }
    return result;
  }
}

}  // namespace

AwsRequest query_request(
    const std::string& service,
    const std::string& version,
    const std::string& action) {
  AwsRequest request;
  request.service = service;
  request.action = service + ":" + action;
  request.method = "POST";
  request.form = {{"Action", action}, {"Version", version}};
  request.expect_xml = true;
  return request;
}

void add_parameter(
    AwsRequest& request,
    const std::string& name,
    const std::string& value) {
  request.form.emplace_back(name, value);
}

AwsRequest json_request(
    const std::string& service,
    const std::string& target,
    std::string_view body) {
  AwsRequest request;
  request.service = service;
  request.action = service + ":" + target.substr(target.find('.') + 1);
  request.method = "POST";
  request.headers = {
      {"Content-Type", "application/x-amz-json-1.1"}, {"X-Amz-Target", target}};
  request.body = body;
  return request;
}

AwsClient::AwsClient(AwsClientOptions options)
    : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  AwsClientOptions& kept = state_->options;
  if (!kept.credentials) {
    kept.credentials =
        find_credentials(kept.settings, *kept.transport, *kept.clock);
  }
  state_->region = kept.region.empty() ? kept.settings.region() : kept.region;
  if (state_->region.empty()) {
    state_->region = kNoRegion;
  }
}
AwsClient::~AwsClient() = default;
AwsClient::AwsClient(AwsClient&&) noexcept = default;

Result<AwsReply> AwsClient::send(const AwsRequest& request) {
  State* state = state_.get();
  return Call(
             state->options,
             state->skew,
             [state] { return state->random(); },
             [state] { return state->server_time(); },
             request,
             state->region)
      .run();
}

Result<AwsReply> AwsClient::call(const AwsRequest& request) {
  LOCKSTEP_ASSIGN(AwsReply reply, send(request));
  if (!reply.fault) {
    return reply;
  }
  Error error = reply.fault->to_error(request.action, request.subject);
  if (reply.attempts > 1 && error.retry()) {
    return std::move(error).with_context(
        fmt::format("tried {} times", reply.attempts));
  }
  return error;
}

const AwsSettings& AwsClient::settings() const {
  return state_->options.settings;
}

const std::string& AwsClient::region() const {
  return state_->region;
}

Result<Credentials> AwsClient::credentials() {
  return state_->options.credentials->get();
}

Duration AwsClient::clock_skew() const {
  return Duration(state_->skew.load());
}

}  // namespace lockstep::fetch
