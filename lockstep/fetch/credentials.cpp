#include "lockstep/fetch/credentials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "lockstep/fetch/assume_role.h"
#include "lockstep/fetch/http_date.h"
#include "lockstep/fetch/instance_metadata.h"

namespace lockstep::fetch {
namespace {

constexpr double kRenewBefore = 300;  // seconds before the end
constexpr double kTryAgain = 30;      // seconds after a failed renewal

class FixedCredentials : public CredentialSource {
 public:
  explicit FixedCredentials(SigningKeys keys) {
    credentials_.keys = std::move(keys);
    credentials_.source = "given";
  }
  Result<Credentials> get() override { return credentials_; }

 private:
  Credentials credentials_;
};

using Found = std::optional<Credentials>;

class CredentialChain : public CredentialSource {
 public:
  CredentialChain(
      const AwsSettings& settings,
      HttpTransport& transport,
      os::Clock& clock)
      : settings_(settings),
        transport_(transport),
        clock_(clock),
        metadata_(settings_, transport, clock) {}

  Result<Credentials> get() override;
  void drop() override {
    const std::lock_guard lock(mutex_);
    kept_.reset();
  }

 private:
  Result<Credentials> look();
  Result<Found> from_environment();
  Result<Found> from_web_identity();
  Result<Found> from_profile(
      const std::string& name,
      std::vector<std::string>& chain);
  Result<Credentials> from_role(
      const std::string& name,
      std::vector<std::string>& chain);
  Result<Credentials> role_source(
      const std::string& name,
      std::vector<std::string>& chain);
  Result<Found> profile_keys(const std::string& name);
  Result<Found> from_container();
  Result<Found> from_instance();
  Result<Credentials> read_document(
      const std::string& text,
      const std::string& source);

  const AwsSettings settings_;
  HttpTransport& transport_;
  os::Clock& clock_;
  InstanceMetadata metadata_;
  std::mutex mutex_;
  std::optional<Credentials> kept_;
  double next_try_ = 0;
  std::vector<std::string> looked_;  // where, and what was there
};

Result<Credentials> CredentialChain::get() {
  const std::lock_guard lock(mutex_);
  const double now = clock_.unix_seconds();
  if (kept_ && (!kept_->expires || now < *kept_->expires - kRenewBefore)) {
    return *kept_;
  }
  const bool still_good = kept_ && now < *kept_->expires;
  if (still_good && now < next_try_) {
    return *kept_;
  }
  Result<Credentials> found = look();
  if (!found) {
    next_try_ = now + kTryAgain;
    if (still_good) {
      return *kept_;
    }
    return found;
  }
  kept_ = *found;
  return found;
}

Result<Credentials> CredentialChain::look() {
  looked_.clear();
  if (!settings_.profile_asked) {
    LOCKSTEP_ASSIGN(Found found, from_environment());
    if (found) {
      return std::move(*found);
    }
    LOCKSTEP_ASSIGN(found, from_web_identity());
    if (found) {
      return std::move(*found);
    }
  }
  std::vector<std::string> chain;
  LOCKSTEP_ASSIGN(Found found, from_profile(settings_.profile, chain));
  if (found) {
    return std::move(*found);
  }
  LOCKSTEP_ASSIGN(found, from_container());
  if (found) {
    return std::move(*found);
  }
  LOCKSTEP_ASSIGN(found, from_instance());
  if (found) {
    return std::move(*found);
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format(
                 "no credentials for the cloud; looked at {}",
                 fmt::join(looked_, ", ")))
      .with_fix(
          "run 'aws configure', or set AWS_ACCESS_KEY_ID and "
          "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; on an instance, give it a "
          "role");
}

Result<Found> CredentialChain::from_environment() {
  const std::string id = settings_.variable("AWS_ACCESS_KEY_ID");
  const std::string secret = settings_.variable("AWS_SECRET_ACCESS_KEY");
  if (id.empty() && secret.empty()) {
    looked_.emplace_back("AWS_ACCESS_KEY_ID (not set)");
    return Found{};
  }
  if (id.empty() || secret.empty()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{} is set and {} is not",
                   id.empty() ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID",
                   id.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY"))
        .with_fix("set both or none");
  }
  Credentials out;
  out.keys = {
      id, Secret(secret), Secret(settings_.variable("AWS_SESSION_TOKEN"))};
  out.source = "environment";
  return out;
}

Result<Found> CredentialChain::from_web_identity() {
  const std::string role = settings_.variable("AWS_ROLE_ARN");
  const std::string file = settings_.variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (role.empty() || file.empty()) {
    return Found{};
  }
  RoleRequest request;
  request.role_arn = role;
  request.session_name = settings_.variable("AWS_ROLE_SESSION_NAME");
  request.web_identity_token_file = file;
  LOCKSTEP_ASSIGN(
      Credentials found,
      assume_role(request, nullptr, settings_, transport_, clock_));
  return found;
}

Result<Found> CredentialChain::from_profile(
    const std::string& name,
    std::vector<std::string>& chain) {
  if (!settings_.has_profile(name)) {
    looked_.push_back(
        fmt::format(
            "profile {} (neither in {} nor in {})",
            name,
            settings_.credentials_file.string(),
            settings_.config_file.string()));
    return Found{};
  }
  const bool again = std::find(chain.begin(), chain.end(), name) != chain.end();
  // "source_profile = itself" means the keys beside the role.
  if (again && chain.back() == name) {
    return profile_keys(name);
  }
  if (again) {
    chain.push_back(name);
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "the profiles of {} lead back to themselves by source_profile: {}",
            settings_.config_file.string(),
            fmt::join(chain, " -> ")));
  }
  chain.push_back(name);
  if (!settings_.value(name, "role_arn").empty()) {
    LOCKSTEP_ASSIGN(Credentials found, from_role(name, chain));
    return found;
  }
  return profile_keys(name);
}

Result<Found> CredentialChain::profile_keys(const std::string& name) {
  for (const auto& [file, path] :
       {std::pair{&settings_.credentials, &settings_.credentials_file},
        std::pair{&settings_.config, &settings_.config_file}}) {
    const auto section = file->find(name);
    if (section == file->end()) {
      continue;
    }
    const auto value = [&](const char* key) {
      const auto found = section->second.find(key);
      return found == section->second.end() ? std::string() : found->second;
    };
    const std::string id = value("aws_access_key_id");
    const std::string secret = value("aws_secret_access_key");
    if (id.empty() && secret.empty()) {
      continue;
    }
    if (id.empty() || secret.empty()) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: profile {} has no {}",
              path->string(),
              name,
              id.empty() ? "aws_access_key_id" : "aws_secret_access_key"));
    }
    const auto& open = settings_.readable_by_others;
    if (std::find(open.begin(), open.end(), *path) != open.end()) {
      return Error(
                 ErrorCode::kPermission,
                 fmt::format(
                     "{} holds keys and can be read by others", path->string()))
          .with_fix(fmt::format("chmod 600 {}", path->string()));
    }
    Credentials out;
    out.keys = {id, Secret(secret), Secret(value("aws_session_token"))};
    out.source = fmt::format("profile {} in {}", name, path->string());
    return out;
  }
  for (const char* key :
       {"sso_session", "sso_start_url", "credential_process"}) {
    if (!settings_.value(name, key).empty()) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format(
                     "profile {} gets its keys by {}, which lockstep does not "
                     "run",
                     name,
                     key))
          .with_fix(
              fmt::format(
                  "eval \"$(aws configure export-credentials --profile {} "
                  "--format env)\"",
                  name));
    }
  }
  looked_.push_back(
      fmt::format(
          "profile {} in {} and {} (no keys)",
          name,
          settings_.credentials_file.string(),
          settings_.config_file.string()));
  return Found{};
}

Result<Credentials> CredentialChain::role_source(
    const std::string& name,
    std::vector<std::string>& chain) {
  const std::string profile = settings_.value(name, "source_profile");
  const std::string place = settings_.value(name, "credential_source");
  const auto bad = [&](const std::string& what) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{}: profile {}: {}", settings_.config_file.string(), name, what));
  };
  if (profile.empty() == place.empty()) {
    return bad(
        "role_arn needs source_profile or credential_source, and only one");
  }
  Found found;
  if (!profile.empty()) {
    LOCKSTEP_ASSIGN(found, from_profile(profile, chain));
    if (!found) {
      return bad(
          fmt::format(
              "source_profile {} is not there or has no keys", profile));
    }
    return std::move(*found);
  }
  if (place == "Environment") {
    LOCKSTEP_ASSIGN(found, from_environment());
  } else if (place == "Ec2InstanceMetadata") {
    LOCKSTEP_ASSIGN(found, from_instance());
  } else if (place == "EcsContainer") {
    LOCKSTEP_ASSIGN(found, from_container());
  } else {
    return bad(
        fmt::format(
            "credential_source is '{}'; accepted: Environment, "
            "Ec2InstanceMetadata, EcsContainer",
            place));
  }
  if (!found) {
    return bad(fmt::format("credential_source {} has no keys", place));
  }
  return std::move(*found);
}

Result<Credentials> CredentialChain::from_role(
    const std::string& name,
    std::vector<std::string>& chain) {
  RoleRequest request;
  request.role_arn = settings_.value(name, "role_arn");
  request.session_name = settings_.value(name, "role_session_name");
  request.external_id = settings_.value(name, "external_id");
  request.seconds = settings_.value(name, "duration_seconds");
  request.web_identity_token_file =
      settings_.value(name, "web_identity_token_file");
  if (!settings_.value(name, "mfa_serial").empty()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "profile {} asks for a code of {}, which lockstep cannot "
                   "do",
                   name,
                   settings_.value(name, "mfa_serial")))
        .with_fix(
            fmt::format(
                "eval \"$(aws configure export-credentials --profile {} "
                "--format env)\"",
                name));
  }
  if (!request.web_identity_token_file.empty()) {
    return assume_role(request, nullptr, settings_, transport_, clock_)
        .with_context(fmt::format("profile {}", name));
  }
  LOCKSTEP_ASSIGN(const Credentials source, role_source(name, chain));
  return assume_role(request, &source.keys, settings_, transport_, clock_)
      .with_context(fmt::format("profile {}", name));
}

Result<Credentials> CredentialChain::read_document(
    const std::string& text,
    const std::string& source) {
  const auto document = nlohmann::json::parse(text, nullptr, false);
  const auto value = [&](const char* key) {
    const auto found =
        document.is_object() ? document.find(key) : document.end();
    return found != document.end() && found->is_string()
               ? found->get<std::string>()
               : std::string();
  };
  Credentials out;
  out.keys = {
      value("AccessKeyId"),
      Secret(value("SecretAccessKey")),
      Secret(value("Token"))};
  out.source = source;
  const auto expires = parse_iso_date(value("Expiration"));
  if (expires) {
    out.expires = static_cast<double>(*expires);
  }
  if (out.keys.key_id.empty() || out.keys.secret.empty()) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} gave no keys{}",
            source,
            value("Message").empty() ? "" : ": " + value("Message")));
  }
  return out;
}

Result<Found> CredentialChain::from_container() {
  const std::string relative =
      settings_.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = settings_.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) {
    url = "http://169.254.170.2" + relative;
  }
  if (url.empty()) {
    return Found{};
  }
  HttpRequest request;
  request.url = url;
  request.direct = true;
  request.connect_timeout = std::chrono::seconds(2);
  request.total_timeout = std::chrono::seconds(5);
  std::string token = settings_.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file =
      settings_.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) {
    LOCKSTEP_ASSIGN(token, os::real_files().read(file));
    while (token.ends_with('\n')) {
      token.pop_back();
    }
  }
  if (!token.empty()) {
    request.headers.emplace_back("Authorization", token);
  }
  LOCKSTEP_ASSIGN(const HttpResponse response, transport_.exchange(request));
  if (response.status != 200) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format(
            "the container's credentials at {}: the server answered {}",
            url,
            response.status));
  }
  LOCKSTEP_ASSIGN(
      Credentials found,
      read_document(response.body, "the container's endpoint " + url));
  return found;
}

Result<Found> CredentialChain::from_instance() {
  const std::string place =
      "the role of this instance (" + metadata_.endpoint() + ": ";
  const std::string base = "meta-data/iam/security-credentials/";
  const auto roles = metadata_.get(base);
  if (!roles) {
    looked_.push_back(place + roles.error().message() + ")");
    return Found{};
  }
  const std::string role = roles->substr(0, roles->find('\n'));
  if (role.empty()) {
    looked_.push_back(place + "it has none)");
    return Found{};
  }
  LOCKSTEP_ASSIGN(const std::string text, metadata_.get(base + role));
  LOCKSTEP_ASSIGN(
      Credentials found,
      read_document(text, fmt::format("role {} of this instance", role)));
  return found;
}

}  // namespace

std::unique_ptr<CredentialSource> find_credentials(
    const AwsSettings& settings,
    HttpTransport& transport,
    os::Clock& clock) {
  return std::make_unique<CredentialChain>(settings, transport, clock);
}

std::unique_ptr<CredentialSource> fixed_credentials(SigningKeys keys) {
  return std::make_unique<FixedCredentials>(std::move(keys));
}

}  // namespace lockstep::fetch
