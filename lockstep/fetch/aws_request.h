#pragma once

// The one way to call a cloud that signs as AWS does: S3, EC2, STS, pricing.
// Signs, sends, and deals with what goes wrong in one place, by class:
//   throttled, 5xx, no answer, reset, cut body   again, after a pause that
//       doubles, with full jitter; Retry-After honoured
//   our clock is off        once more with the server's (its Date header)
//   temporary keys are over once more with new ones
//   everything else         the answer is final, and the cloud's words stay
// A request that must not happen twice (repeatable = false) is not sent again
// once it may have arrived; give it an idempotency token instead where the
// cloud takes one. Waits go through the clock, so tests do not sleep.
// Thread-safe: one client serves many threads.
//
//   AwsClient client({.settings = settings});
//   AwsRequest request = query_request("ec2", "2016-11-15", "RunInstances");
//   add_parameter(request, "ClientToken", token);
//   LOCKSTEP_ASSIGN(AwsReply reply, client.send(request));
//   if (reply.fault) { /* look at reply.fault->code */ }
//   for (auto node : reply.xml->child("RunInstancesResponse")...)

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/fetch/aws_error.h"
#include "lockstep/fetch/aws_profile.h"
#include "lockstep/fetch/credentials.h"
#include "lockstep/fetch/http_exchange.h"
#include "lockstep/fetch/sigv4.h"
#include "lockstep/fetch/xml.h"
#include "lockstep/os/clock.h"

namespace lockstep::fetch {

struct AwsRequest {
  std::string service;   // as signed: "s3", "ec2", "sts", "pricing"
  std::string action;    // as policies name it: "ec2:RunInstances"
  std::string subject;   // for errors: "s3://bucket/key", may be empty
  std::string region;    // empty: the client's
  std::string endpoint;  // empty: by the settings
  std::string method = "GET";
  std::string path = "/";  // plain
  Query query;             // plain
  Headers headers;
  std::string_view body;  // must live as long as the call
  Query form;             // sent as the body instead, form-encoded
  // Sent as the body instead; must live as long as the call. Its SHA-256 is the
  // caller's to know: needed where the payload is signed, over http.
  const BodySource* body_source = nullptr;
  std::string body_sha256;
  bool repeatable = true;
  bool fresh = false;  // as HttpRequest::fresh: attempts counts every sending
  bool sign = true;
  // A 2xx body must be whole XML: one that is not counts as cut. An <Error>
  // inside a 200 counts as what it says.
  bool expect_xml = false;
  std::function<bool(std::string_view)> sink;  // as HttpRequest::sink
  BodyTarget* target = nullptr;                // as HttpRequest::target
  std::function<void()> rewind;  // before either is fed from the start again
  // Codes that mean "not yet" for this call (eventual consistency): repeated
  // like throttling until the deadline.
  std::vector<std::string> not_yet;
};

// EC2's and STS's way: POST with Action, Version and parameters, XML back.
AwsRequest query_request(
    const std::string& service,
    const std::string& version,
    const std::string& action);
void add_parameter(
    AwsRequest& request,
    const std::string& name,
    const std::string& value);
// The way of pricing and others: POST of JSON to a target
// ("AWSPriceListService.GetProducts"). `body` must live as long as the call.
AwsRequest json_request(
    const std::string& service,
    const std::string& target,
    std::string_view body);

struct AwsReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  XmlDocument xml;                // with expect_xml and a 2xx
  std::optional<AwsFault> fault;  // the final refusal
  int attempts = 0;
};

struct AwsClientOptions {
  AwsSettings settings;
  std::string region;                             // empty: by the settings
  std::shared_ptr<CredentialSource> credentials;  // empty: find_credentials
  int attempts = 8;                               // in all, of one call
  int connect_attempts = 4;  // of these, while nobody answers at all
  Duration backoff = std::chrono::milliseconds(100);  // first pause, at most
  Duration longest_pause = std::chrono::seconds(20);
  Duration limit = std::chrono::minutes(10);  // of one call with its pauses
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(30);
  std::function<void(const std::string&)> say;  // each retry, and why
  std::function<bool()> stopped;                // true ends with kInterrupted
  HttpTransport* transport = &real_transport();
  os::Clock* clock = &os::real_clock();
  std::function<double()> random;  // in [0, 1); empty: the system's
};

class AwsClient {
 public:
  explicit AwsClient(AwsClientOptions options);
  ~AwsClient();
  AwsClient(AwsClient&&) noexcept;

  // An Error when no answer came, or when nothing could be signed; a refusal
  // by the cloud is reply.fault, for callers that look at its code.
  Result<AwsReply> send(const AwsRequest& request);
  // A refusal is an Error too.
  Result<AwsReply> call(const AwsRequest& request);

  const AwsSettings& settings() const;
  const std::string& region() const;  // "us-east-1" when nobody says
  Result<Credentials> credentials();
  // What the server's clock is ahead of ours, as last learned.
  Duration clock_skew() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::fetch
