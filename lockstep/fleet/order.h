#pragma once

// Orders as JSON, for the journal: what it takes to repeat one exactly.
// Internal to fleet.

#include <nlohmann/json.hpp>

#include "lockstep/base/result.h"
#include "lockstep/cloud/provider.h"

namespace lockstep::fleet {

nlohmann::json order_json(const cloud::LaunchOrder& order);
Result<cloud::LaunchOrder> order_from_json(const nlohmann::json& value);

}  // namespace lockstep::fleet
