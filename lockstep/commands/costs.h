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
// was last heard of.
std::optional<Money> cost_of(
    const launch::RunStateFile& state,
    const record::RunDirectory& run);

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
