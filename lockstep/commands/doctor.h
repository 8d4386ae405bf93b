#pragma once

// Findings of `lockstep doctor`: about this machine (doctor.cpp) and about
// other hosts (doctor_hosts.cpp).

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/port_range.h"
#include "lockstep/launch/hosts.h"
#include "lockstep/reach/session.h"

namespace lockstep::commands {

enum class Grade { kGood, kLacking, kBroken };

struct Finding {
  std::string what;
  Grade grade = Grade::kGood;
  std::string detail;
  std::string fix;
  std::string host = {};  // empty: this machine
};

struct HostsQuestion {
  std::vector<launch::HostSlots> hosts;
  reach::ReachOptions reach;
  PortRange ports;  // between hosts
};
// Reaches all hosts side by side, looks at each, then at the way between each
// two. A host that cannot be used has a broken finding.
std::vector<Finding> look_at_hosts(const HostsQuestion& question);

// Credentials, permissions, quotas and prices of a cloud's region.
std::vector<Finding> look_at_cloud(
    const std::string& region,
    const Settings& settings);

}  // namespace lockstep::commands
