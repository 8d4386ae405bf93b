#pragma once

// Temporary keys of a role by STS. Internal to fetch. One call, with the
// retries of AwsClient; the cloud's own words on refusal.

#include <string>

#include "lockstep/fetch/credentials.h"

namespace lockstep::fetch {

struct RoleRequest {
  std::string role_arn;
  std::string session_name;  // empty: lockstep-<pid>
  std::string external_id;
  std::string seconds;  // of life, as the profile says; empty: the cloud's
  std::string web_identity_token_file;  // then no keys are needed
};

// `keys` are of who may assume it; null with a web identity.
Result<Credentials> assume_role(
    const RoleRequest& request,
    const SigningKeys* keys,
    const AwsSettings& settings,
    HttpTransport& transport,
    os::Clock& clock);

}  // namespace lockstep::fetch
