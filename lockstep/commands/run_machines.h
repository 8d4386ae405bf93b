#pragma once

// The machines of one run: rented for it, or those of a cluster that is up.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/run_kinds.h"

namespace lockstep::commands {

// With the cheapest type of `cpus`, `memory` and `accelerators` in their place,
// where they ask for one; says which, on standard error.
// The order with what the user's cap leaves as its budget, where that is less;
// refused when nothing is left.
Result<RunOrder> within_cap(const RunOrder& order);

Result<RunOrder> with_type(const RunOrder& order);

// The cluster that a job's resources ask for; its name is the run's with a
// random end.
Result<fleet::Cluster> cluster_of(
    const RunOrder& order,
    const Settings& settings);

// ssh options that reach nodes by their names.
std::vector<std::string> ssh_words(const os::Path& folder);

// The order over these nodes, at their price.
RunOrder order_on(
    const RunOrder& order,
    const std::vector<fleet::Node>& nodes,
    const os::Path& folder,
    Rented& rented);

// `lockstep run --detach`: the same command once more in a session of its own,
// which stays to store results and give machines back. Prints the run.
Result<int> leave_behind(const RunOrder& order);
// In that process: tells the run to whoever waits, and lets go of the terminal.
bool was_left_behind();
void tell_begun(const record::RunDirectory& run);

}  // namespace lockstep::commands
