#include "lockstep/fetch/aws_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "lockstep/base/text.h"

namespace lockstep::fetch {
namespace {

std::string section_name(std::string_view text) {
  text = trim(text);
  if (text.starts_with("profile ") || text.starts_with("profile\t")) {
    text = trim(text.substr(8));
  }
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
      text.back() == text.front()) {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

// "value # remark": a remark begins after a blank.
std::string_view without_remark(std::string_view text) {
  for (size_t at = 1; at < text.size(); ++at) {
    const bool blank = text[at - 1] == ' ' || text[at - 1] == '\t';
    if (blank && (text[at] == '#' || text[at] == ';')) {
      return trim(text.substr(0, at));
    }
  }
  return text;
}

std::string upper_name(std::string_view service) {
  std::string out(service);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return c == '-' || c == ' ' ? '_' : static_cast<char>(std::toupper(c));
  });
  return out;
}

bool holds_keys(const ProfileFile& file) {
  return std::any_of(file.begin(), file.end(), [](const auto& section) {
    return section.second.contains("aws_secret_access_key") ||
           section.second.contains("aws_session_token");
  });
}

Result<ProfileFile> read_profiles(
    const os::Path& path,
    std::vector<os::Path>& readable_by_others) {
  const auto text = os::real_files().read(path);
  if (!text) {
    if (text.error().code() == ErrorCode::kNotFound) {
      return ProfileFile{};
    }
    return text.error();
  }
  LOCKSTEP_ASSIGN(ProfileFile file, parse_profiles(*text, path));
  struct stat facts{};
  if (holds_keys(file) && ::stat(path.c_str(), &facts) == 0 &&
      (facts.st_mode & 077) != 0) {
    readable_by_others.push_back(path);
  }
  return file;
}

}  // namespace

Result<ProfileFile> parse_profiles(
    std::string_view text,
    const os::Path& name) {
  ProfileFile file;
  ProfileValues* section = nullptr;
  std::string parent;  // "s3" while lines below "s3 =" are indented
  int number = 0;
  const auto bad = [&](const std::string& what) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{}:{}: {}", name.string(), number, what));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const std::string_view body = trim(line);
    if (body.empty() || body.front() == '#' || body.front() == ';') {
      continue;
    }
    const bool indented = line.front() == ' ' || line.front() == '\t';
    if (body.front() == '[' && !indented) {
      const size_t close = body.find(']');
      if (close == std::string_view::npos) {
        return bad("'[' without ']'");
      }
      section = &file[section_name(body.substr(1, close - 1))];
      parent.clear();
      continue;
    }
    const size_t equals = body.find('=');
    if (equals == std::string_view::npos) {
      // The line is not shown: it may be a key that lost its name.
      return bad("expected 'name = value' or '[section]'");
    }
    if (section == nullptr) {
      return bad("a value before the first '[section]'");
    }
    std::string key(trim(body.substr(0, equals)));
    std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    const std::string value(without_remark(trim(body.substr(equals + 1))));
    if (indented && !parent.empty()) {
      (*section)[parent + "." + key] = value;
      continue;
    }
    parent = value.empty() ? key : "";
    (*section)[key] = value;
  }
  return file;
}

std::string AwsSettings::variable(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string AwsSettings::value(
    const std::string& profile_name,
    const std::string& key) const {
  for (const ProfileFile* file : {&credentials, &config}) {
    const auto section = file->find(profile_name);
    if (section != file->end()) {
      const auto found = section->second.find(key);
      if (found != section->second.end() && !found->second.empty()) {
        return found->second;
      }
    }
  }
  return "";
}

bool AwsSettings::has_profile(const std::string& name) const {
  return config.contains(name) || credentials.contains(name);
}

std::string AwsSettings::region() const {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (const std::string found = variable(name); !found.empty()) {
      return found;
    }
  }
  return value(profile, "region");
}

std::string AwsSettings::endpoint(
    const std::string& service,
    const std::string& region_name) const {
  std::string url = variable("AWS_ENDPOINT_URL_" + upper_name(service));
  if (url.empty()) {
    url = variable("AWS_ENDPOINT_URL");
  }
  // [services x] s3.endpoint_url by the profile's "services = x".
  if (const std::string services = value(profile, "services");
      url.empty() && !services.empty()) {
    url = value("services " + services, service + ".endpoint_url");
  }
  if (url.empty()) {
    url = value(profile, "endpoint_url");
  }
  if (url.empty()) {
    return fmt::format(
        "https://{}.{}.amazonaws.com{}",
        service == "pricing" ? "api.pricing" : service,
        region_name,
        region_name.starts_with("cn-") ? ".cn" : "");
  }
  while (url.ends_with('/')) {
    url.pop_back();
  }
  return url;
}

bool AwsSettings::custom_endpoint(const std::string& service) const {
  return endpoint(service, "x") != AwsSettings{}.endpoint(service, "x");
}

os::Path AwsSettings::ca_file() const {
  return variable("AWS_CA_BUNDLE");
}

Result<AwsSettings> load_settings(
    const std::map<std::string, std::string>& environment,
    const std::string& profile) {
  AwsSettings settings;
  for (const auto& [name, value] : environment) {
    if ((name.starts_with("AWS_") || name == "HOME") && !value.empty()) {
      settings.environment[name] = value;
    }
  }
  const std::string home = settings.variable("HOME");
  const auto file = [&](const char* variable, const char* standard) {
    std::string path = settings.variable(variable);
    if (path.starts_with("~/")) {
      path = home + path.substr(1);
    }
    return os::Path(path.empty() ? home + "/.aws/" + standard : path);
  };
  settings.config_file = file("AWS_CONFIG_FILE", "config");
  settings.credentials_file =
      file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  std::string wanted = profile;
  for (const char* name : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (wanted.empty()) {
      wanted = settings.variable(name);
    }
  }
  settings.profile_asked = !profile.empty();
  settings.profile = wanted.empty() ? "default" : wanted;
  LOCKSTEP_ASSIGN(
      settings.config,
      read_profiles(settings.config_file, settings.readable_by_others));
  LOCKSTEP_ASSIGN(
      settings.credentials,
      read_profiles(settings.credentials_file, settings.readable_by_others));
  if (!wanted.empty() && !settings.has_profile(settings.profile)) {
    std::set<std::string> known;
    for (const ProfileFile* found : {&settings.config, &settings.credentials}) {
      for (const auto& [name, values] : *found) {
        known.insert(name);
      }
    }
    return Error(
               ErrorCode::kNotFound,
               fmt::format(
                   "profile '{}' is neither in {} nor in {}",
                   settings.profile,
                   settings.config_file.string(),
                   settings.credentials_file.string()))
        .with_fix(
            known.empty()
                ? "run 'aws configure', or unset AWS_PROFILE and set "
                  "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                : fmt::format("there is: {}", fmt::join(known, ", ")));
  }
  return settings;
}

Result<AwsSettings> load_settings(const std::string& profile) {
  std::map<std::string, std::string> environment;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return load_settings(environment, profile);
}

}  // namespace lockstep::fetch
