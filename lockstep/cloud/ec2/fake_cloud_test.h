#pragma once

// A cloud for tests: a signed client whose transport asks a function, by
// action or target, and time that does not pass by itself.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/fetch/aws_request.h"

namespace lockstep::cloud::ec2 {

using Parameters = std::map<std::string, std::string>;

struct FakeCall {
  std::string action;     // or the target of a JSON call
  Parameters parameters;  // of the query API
  std::string body;
  std::string host;
};

class FakeCloud {
 public:
  // Status and body.
  using Answer =
      std::function<std::pair<int, std::string>(const FakeCall& call)>;
  explicit FakeCloud(Answer answer)
      : transport_(
            [this, answer](const fetch::FakeTransport::Asked& asked)
                -> Result<fetch::HttpResponse> {
              FakeCall call = read_call(asked);
              calls.push_back(call);
              const auto [status, body] = answer(call);
              fetch::HttpResponse response;
              response.status = status;
              response.body = body;
              return response;
            }) {
    fetch::AwsClientOptions options;
    options.region = "us-west-2";
    options.transport = &transport_;
    options.clock = &clock;
    options.random = [] { return 0.5; };
    options.credentials = fetch::fixed_credentials(
        {"AKIAEXAMPLE", fetch::Secret("a secret"), fetch::Secret()});
    client = std::make_unique<fetch::AwsClient>(std::move(options));
  }

  size_t count(const std::string& action) const {
    size_t number = 0;
    for (const FakeCall& call : calls) {
      number += call.action == action ? 1 : 0;
    }
    return number;
  }

  os::FakeClock clock{1.79e9};
  std::vector<FakeCall> calls;
  std::unique_ptr<fetch::AwsClient> client;

 private:
  static std::string decode(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '%' && i + 2 < text.size()) {
        out += static_cast<char>(
            std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
        i += 2;
      } else {
        out += text[i] == '+' ? ' ' : text[i];
      }
    }
    return out;
  }

  static FakeCall read_call(const fetch::FakeTransport::Asked& asked) {
    FakeCall call;
    call.body = asked.body;
    call.host = asked.request.url;
    for (const auto& [name, value] : asked.request.headers) {
      if (name == "X-Amz-Target" || name == "x-amz-target") {
        call.action = value;
        return call;
      }
    }
    std::string_view rest = asked.body;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('&'), rest.size());
      const std::string_view pair = rest.substr(0, end);
      const size_t equal = std::min(pair.find('='), pair.size());
      call.parameters[decode(pair.substr(0, equal))] =
          equal < pair.size() ? decode(pair.substr(equal + 1)) : "";
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    call.action = call.parameters["Action"];
    return call;
  }

  fetch::FakeTransport transport_;
};

inline std::pair<int, std::string>
refused(int status, const std::string& code, const std::string& message) {
  return {
      status,
      "<Response><Errors><Error><Code>" + code + "</Code><Message>" + message +
          "</Message></Error></Errors><RequestID>r-1</RequestID></Response>"};
}

}  // namespace lockstep::cloud::ec2
