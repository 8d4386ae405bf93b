#pragma once

// The lease of a node as the controller sees it: texts of sh that read and
// renew the file of cloud/user_data.h on the node, by the node's own clock.
// Pure but for the functions that take a shell.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/fleet/node.h"

namespace lockstep::fleet {

// Between the end of a lease and the end of the machine: two looks of the
// timer and the shutdown.
inline constexpr double kShutdownSeconds = 30;

struct LeaseState {
  double until = 0;  // Unix seconds, by the node's clock
  Duration left = {};
};

// Prints "lease <until> <now>", an end by budget or max_duration counted; fails
// while the timer does not run.
std::string lease_look_script();
// Reaches `time` from now; a lease that reaches further stays.
std::string lease_renew_script(Duration time);
// The machine ends at that time (Unix seconds) at the latest, whoever renews; a
// later time than one that stands changes nothing.
std::string lease_end_script(double at);
Result<LeaseState> parse_lease_look(const std::string& text);

Result<LeaseState>
look_at_lease(NodeShell& shell, const Node& node, os::Deadline deadline);
// Until the first of the nodes ends by budget or max_duration, whoever renews;
// none: there is no such end. One that does not answer is left out.
std::optional<Duration> time_to_end(
    NodeShell& shell,
    const std::vector<Node>& nodes,
    os::Deadline deadline);
// All nodes side by side; the errors of those that failed, as one.
Result<void> renew_leases(
    NodeShell& shell,
    const std::vector<Node>& nodes,
    Duration time,
    os::Deadline deadline);

}  // namespace lockstep::fleet
