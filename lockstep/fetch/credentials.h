#pragma once

// Who we are to the cloud. Looked for in this order, as the AWS tools do:
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, unless
//      the caller (not AWS_PROFILE) named a profile
//   2. the profile (AWS_PROFILE, else "default") of ~/.aws/credentials and
//      ~/.aws/config: keys, or role_arn with source_profile or
//      credential_source, assumed through STS; a web identity token
//   3. the container's endpoint (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or
//      _FULL_URI)
//   4. the role of the instance (IMDSv2), unless AWS_EC2_METADATA_DISABLED
// Temporary keys are fetched anew five minutes before they end; while that
// fails, they are used to their end. Nothing here is ever printed, logged or
// written: keys are Secrets. A credentials file that others can read is an
// error. Errors say where it looked and what to do. Thread-safe.

#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/fetch/aws_profile.h"
#include "lockstep/fetch/http_exchange.h"
#include "lockstep/fetch/sigv4.h"
#include "lockstep/os/clock.h"

namespace lockstep::fetch {

struct Credentials {
  SigningKeys keys;
  std::optional<double> expires;  // Unix seconds
  std::string source;  // "profile dev in ~/.aws/credentials": for people
};

class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  // Keys that are good now.
  virtual Result<Credentials> get() = 0;
  // The cloud says that these are over: forget them, get() looks anew.
  virtual void drop() {}
};

// The chain above. Nothing is looked up before the first get().
std::unique_ptr<CredentialSource> find_credentials(
    const AwsSettings& settings,
    HttpTransport& transport = real_transport(),
    os::Clock& clock = os::real_clock());

// For tests, and for keys that a caller has already.
std::unique_ptr<CredentialSource> fixed_credentials(SigningKeys keys);

}  // namespace lockstep::fetch
