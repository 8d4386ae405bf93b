#pragma once

// The instance's own documents by IMDSv2: a token first, then the path. At
// http://169.254.169.254 or AWS_EC2_METADATA_SERVICE_ENDPOINT; never through a
// proxy. Answers in a second or two where there is no such service
// (kUnavailable). Thread-safe.

#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/fetch/aws_profile.h"
#include "lockstep/fetch/http_exchange.h"
#include "lockstep/os/clock.h"

namespace lockstep::fetch {

class InstanceMetadata {
 public:
  explicit InstanceMetadata(
      const AwsSettings& settings,
      HttpTransport& transport = real_transport(),
      os::Clock& clock = os::real_clock());
  ~InstanceMetadata();

  // "meta-data/spot/instance-action" below /latest/. kNotFound when the
  // document is not there (no notice yet), kPermission when the service is
  // switched off by AWS_EC2_METADATA_DISABLED.
  Result<std::string> get(const std::string& path);
  const std::string& endpoint() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::fetch
