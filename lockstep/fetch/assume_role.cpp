#include "lockstep/fetch/assume_role.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/fetch/aws_request.h"
#include "lockstep/fetch/http_date.h"

namespace lockstep::fetch {

Result<Credentials> assume_role(
    const RoleRequest& role,
    const SigningKeys* keys,
    const AwsSettings& settings,
    HttpTransport& transport,
    os::Clock& clock) {
  const bool web = !role.web_identity_token_file.empty();
  AwsRequest request = query_request(
      "sts", "2011-06-15", web ? "AssumeRoleWithWebIdentity" : "AssumeRole");
  request.subject = role.role_arn;
  add_parameter(request, "RoleArn", role.role_arn);
  add_parameter(
      request,
      "RoleSessionName",
      role.session_name.empty() ? fmt::format("lockstep-{}", ::getpid())
                                : role.session_name);
  if (!role.external_id.empty()) {
    add_parameter(request, "ExternalId", role.external_id);
  }
  if (!role.seconds.empty()) {
    add_parameter(request, "DurationSeconds", role.seconds);
  }
  if (web) {
    LOCKSTEP_ASSIGN(
        std::string token, os::real_files().read(role.web_identity_token_file));
    while (token.ends_with('\n')) {
      token.pop_back();
    }
    add_parameter(request, "WebIdentityToken", token);
    request.sign = false;
  }
  AwsClientOptions options;
  options.settings = settings;
  options.credentials =
      fixed_credentials(keys == nullptr ? SigningKeys{} : *keys);
  options.transport = &transport;
  options.clock = &clock;
  options.limit = std::chrono::minutes(1);
  AwsClient client(std::move(options));
  LOCKSTEP_ASSIGN(const AwsReply reply, client.call(request));
  const pugi::xml_node found = reply.xml->first_element_by_path(
      web ? "AssumeRoleWithWebIdentityResponse/"
            "AssumeRoleWithWebIdentityResult/Credentials"
          : "AssumeRoleResponse/AssumeRoleResult/Credentials");
  Credentials out;
  out.keys = {
      xml_text(found, "AccessKeyId"),
      Secret(xml_text(found, "SecretAccessKey")),
      Secret(xml_text(found, "SessionToken"))};
  const auto expires = parse_iso_date(xml_text(found, "Expiration"));
  if (out.keys.key_id.empty() || out.keys.secret.empty() || !expires) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} {}: the answer has no keys", request.action, role.role_arn));
  }
  out.expires = static_cast<double>(*expires);
  out.source = fmt::format("role {}", role.role_arn);
  return out;
}

}  // namespace lockstep::fetch
