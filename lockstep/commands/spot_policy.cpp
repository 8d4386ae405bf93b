#include "lockstep/commands/spot_policy.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::commands {

namespace {

Duration told_by(const char* variable, Duration otherwise) {
  const char* told = std::getenv(variable);
  return told == nullptr ? otherwise : parse_duration(told).value_or(otherwise);
}

}  // namespace

Duration spot_wait() {
  return told_by("LOCKSTEP_SPOT_WAIT", std::chrono::minutes(2));
}

Duration replacement_time() {
  return told_by("LOCKSTEP_REPLACEMENT", std::chrono::minutes(5));
}

void prefer_elsewhere(
    fleet::Plan& plan,
    const fleet::Cluster& cluster,
    const TakenPlace& taken,
    bool may_pay) {
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    auto& places = plan.groups[i].places;
    if (cluster.groups[i].use_spot == fleet::UseSpot::kNo) {
      continue;
    }
    const auto rank = [&](const fleet::Place& place) {
      const auto& where = place.where;
      if (where.market != cloud::Market::kSpot) {
        return 2;
      }
      const bool is_there = where.type == taken.type &&
                            (where.zone == taken.zone || where.zone.empty());
      return is_there ? 1 : 0;
    };
    std::ranges::stable_sort(places, {}, rank);
    const auto first_paid = std::ranges::find(
        places, cloud::Market::kOnDemand, [](const fleet::Place& place) {
          return place.where.market;
        });
    if (!may_pay && first_paid != places.begin()) {
      places.erase(first_paid, places.end());
    }
  }
}

}  // namespace lockstep::commands
