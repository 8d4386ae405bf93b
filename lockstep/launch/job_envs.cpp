#include "lockstep/launch/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/nearest.h"

namespace lockstep::launch {

Environment common_envs(const Job& job) {
  Environment common;
  for (const auto& [name, value] : job.envs) {
    if (name.find('.') == std::string::npos) {
      common.emplace(name, value);
    }
  }
  return common;
}

Environment host_envs(const Job& job, const std::string& host) {
  Environment own;
  for (const auto& [name, value] : job.envs) {
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos && name.substr(0, dot) == host) {
      own.emplace(name.substr(dot + 1), value);
    }
  }
  return own;
}

namespace {

// Without the slots of "n1:4".
bool is_listed(const std::string& host, const std::vector<std::string>& hosts) {
  return std::ranges::any_of(hosts, [&](const std::string& one) {
    return one == host || one.starts_with(host + ":");
  });
}

}  // namespace

Result<void> check_host_envs(
    const Job& job,
    const std::vector<std::string>& hosts) {
  for (const auto& [name, value] : job.envs) {
    const size_t dot = name.rfind('.');
    const std::string host = name.substr(0, dot);
    if (dot != std::string::npos && !is_listed(host, hosts) &&
        (hosts.empty() || !is_listed(host, job.resources.hosts))) {
      return Error(
          ErrorCode::kInvalidInput,
          hosts.empty()
              ? fmt::format("envs.{}: a host's own values need --hosts", name)
              : fmt::format(
                    "envs.{}: '{}' is not a host of this run; {}",
                    name,
                    host,
                    suggest(host, hosts)));
    }
  }
  return {};
}

}  // namespace lockstep::launch
