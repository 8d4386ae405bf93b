#pragma once

// A machine of a cluster as the fleet sees it, and the way to run something on
// it. The fleet knows no ssh: whoever makes a fleet brings a NodeShell.

#include <string>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/cloud/machine.h"
#include "lockstep/os/clock.h"

namespace lockstep::fleet {

// More tags of ours, beside those of cloud/machine.h.
// What the machine costs an hour with its disk, in dollars.
inline constexpr std::string_view kHourlyTag = "lockstep:hourly";
// Until when whoever made it claims it without a look at it (Unix seconds).
inline constexpr std::string_view kUntilTag = "lockstep:until";
// "runs": somebody saw that its own timer runs, so that it ends itself.
inline constexpr std::string_view kTimerTag = "lockstep:timer";
// Who logs in.
inline constexpr std::string_view kUserTag = "lockstep:user";

struct Node {
  std::string name;  // "blue-0"
  size_t group = 0;  // of Cluster::groups
  cloud::Instance instance;
  Money hourly;  // machine and disk
  bool price_known = true;
  std::string user;
  // The public one where there is one.
  const std::string& address() const {
    return instance.public_address.empty() ? instance.private_address
                                           : instance.public_address;
  }
};

class NodeShell {
 public:
  virtual ~NodeShell() = default;
  // Runs a text of POSIX sh on the node; its standard output. An error whose
  // retry() is set: the node does not answer (yet). One without: the script
  // failed, its last lines are in the message. Safe from any thread.
  virtual Result<std::string>
  run(const Node& node, const std::string& script, os::Deadline deadline) = 0;
};

// The value of a tag; empty: it has none.
std::string tag_of(const cloud::Tags& tags, std::string_view key);

}  // namespace lockstep::fleet
