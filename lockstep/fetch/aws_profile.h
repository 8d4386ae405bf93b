#pragma once

// What the user has told the AWS tools: environment and profile files. Read
// once by load_settings; a value after that. Region and endpoint come from
// here; keys do too (fetch/credentials.h). Bad lines are errors with file and
// line.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

// One [section] of a file; "s3.addressing_style" for nested settings.
using ProfileValues = std::map<std::string, std::string>;
using ProfileFile = std::map<std::string, ProfileValues>;

// An ini file as the AWS tools write it; `name` is for errors. "[profile x]"
// and "[x]" are both section "x".
Result<ProfileFile> parse_profiles(std::string_view text, const os::Path& name);

struct AwsSettings {
  std::map<std::string, std::string> environment;  // AWS_* and HOME
  std::string profile = "default";
  bool profile_asked = false;  // by the caller, not by AWS_PROFILE
  os::Path config_file;
  os::Path credentials_file;
  ProfileFile config;
  ProfileFile credentials;
  // A file with keys that others may read: said when a key of it is wanted.
  std::vector<os::Path> readable_by_others;

  std::string variable(const std::string& name) const;  // "" when unset
  // A value of the profile, from either file; credentials first.
  std::string value(const std::string& profile, const std::string& key) const;
  bool has_profile(const std::string& name) const;
  // AWS_REGION, AWS_DEFAULT_REGION, the profile's; "" when none says.
  std::string region() const;
  // AWS_ENDPOINT_URL_<SERVICE>, AWS_ENDPOINT_URL, the profile's endpoint_url;
  // else https://<service>.<region>.amazonaws.com (.cn in China).
  std::string endpoint(const std::string& service, const std::string& region)
      const;
  bool custom_endpoint(const std::string& service) const;
  os::Path ca_file() const;  // AWS_CA_BUNDLE
};

// `profile` wins over AWS_PROFILE. A file that is absent is empty; a profile
// that was named and is in neither file is kNotFound with those there are.
Result<AwsSettings> load_settings(
    const std::map<std::string, std::string>& environment,
    const std::string& profile = "");
// With the environment of this process.
Result<AwsSettings> load_settings(const std::string& profile = "");

}  // namespace lockstep::fetch
