#include "lockstep/commands/cloud_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lockstep/base/log.h"

namespace lockstep::commands {
namespace {

// A region becomes part of an address.
bool is_region(const std::string& name) {
  return !name.empty() && name.size() <= 40 &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
         });
}

}  // namespace

Result<std::vector<std::string>> chosen_regions(
    const std::vector<std::string>& option,
    const Settings& settings) {
  std::vector<std::string> regions = option;
  if (regions.empty()) {
    regions = settings.regions;
  }
  if (regions.empty() && !settings.region.empty()) {
    regions = {settings.region};
  }
  if (regions.empty()) {
    LOCKSTEP_ASSIGN(const auto aws, fetch::load_settings());
    if (!aws.region().empty()) {
      regions = {aws.region()};
    }
  }
  std::vector<std::string> once;
  for (const std::string& region : regions) {
    if (!is_region(region)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("'{}' is no region; accepted: us-west-2, ...", region));
    }
    if (std::ranges::count(once, region) == 0) {
      once.push_back(region);
    }
  }
  return once;
}

Result<std::unique_ptr<fetch::AwsClient>> open_aws(
    const std::string& region,
    int attempts) {
  fetch::AwsClientOptions options;
  LOCKSTEP_ASSIGN(options.settings, fetch::load_settings());
  options.region = region;
  options.attempts = attempts;
  options.limit = std::chrono::seconds(30);
  options.say = [](const std::string& text) { log_debug(text); };
  return std::make_unique<fetch::AwsClient>(std::move(options));
}

std::string age_text(double seconds) {
  if (seconds < 90) {
    return fmt::format("{:.0f} s", std::max(0.0, seconds));
  }
  if (seconds < 90 * 60) {
    return fmt::format("{:.0f} min", seconds / 60);
  }
  if (seconds < 48 * 3600) {
    return fmt::format("{:.0f} h", seconds / 3600);
  }
  return fmt::format("{:.0f} days", seconds / 86400);
}

}  // namespace lockstep::commands
