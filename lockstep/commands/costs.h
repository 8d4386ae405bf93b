#pragma once

// What runs cost, from their directories: machines that were given back by
// their bill, all else by time and price.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/commands/command.h"
#include "lockstep/launch/run_state.h"

namespace lockstep::commands {

// So far, or in all; none: no price is known. Of a run that was lost: until it
// was last heard of; of one on machines that are gone: until they went.
std::optional<Money> cost_of(
    const launch::RunStateFile& state,
    const record::RunDirectory& run);

// When the machines of a run that nobody ended went, by the record of their
// cluster on this machine (Unix seconds); none: they may be there still.
std::optional<double> machines_ended(const launch::RunStateFile& state);
// The state, which is "lost" where its machines are gone.
launch::RunStateFile with_machines(launch::RunStateFile state);
// Writes that down for the runs below `runs_dir` that used a cluster; how many.
Result<int> settle_runs(
    const std::string& runs_dir,
    const std::string& cluster);

struct RunCost {
  launch::RunStateFile state;
  std::optional<Money> cost;
};
// Runs that began after `since` (Unix seconds), the newest first.
Result<std::vector<RunCost>> costs_since(
    const Settings& settings,
    double since);

// What the user's cap leaves; none: there is no cap. An error when nothing is
// left.
Result<std::optional<Money>> check_cap(const Settings& settings);

}  // namespace lockstep::commands
