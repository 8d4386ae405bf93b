#pragma once

// A cluster on its way to machines: where each group may be launched, with
// which image, and what that costs, before anything is made. Asks the cloud,
// changes nothing.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cloud/fallback.h"
#include "lockstep/cloud/prices.h"
#include "lockstep/cloud/provider.h"
#include "lockstep/fleet/cluster.h"

namespace lockstep::fleet {

struct Place {
  cloud::LaunchPlace where;
  std::string root_device;
  std::string user;
  Bytes disk;
  std::optional<Money> hourly;  // machine and disk; none: nobody knows
  // What it can become: spot goes up to the bid, else to the on-demand price.
  std::optional<Money> hourly_most;
};

struct GroupPlan {
  std::vector<Place> places;          // in order
  std::optional<cloud::Price> price;  // of the first place
  std::optional<cloud::Quota> quota;  // none: it could not be asked
  int cpus = 0;                       // of one node of the first place
};

struct Plan {
  std::vector<GroupPlan> groups;  // as the cluster's
  Money hourly;                   // all nodes, first places
  Money hourly_most;              // all nodes, dearest places
  bool price_known = true;
  std::vector<std::string> notes;  // what could not be asked, and why
  // A node may live no longer, by budget and max_duration.
  std::optional<Duration> longest_life;
};

// `have`: nodes of each group that are there already, for the quota. Errors:
// unknown types, a region without the type, an image of another
// architecture, no quota for the minimum, a price that nobody knows while a
// budget is set, a budget below a minute.
Result<Plan> make_plan(
    cloud::Provider& provider,
    cloud::PriceBook& prices,
    const Cluster& cluster,
    const std::vector<int>& have = {});

// A plan on its way to another machine, which acquires by it: without quotas
// and notes, which were for the user.
nlohmann::json to_json(const Plan& plan);
Result<Plan> plan_from_json(const nlohmann::json& value);

}  // namespace lockstep::fleet
