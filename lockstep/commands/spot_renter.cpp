#include "lockstep/commands/spot_renter.h"

#include <algorithm>

namespace lockstep::commands {

SpotRenter::SpotRenter(SpotRenterOptions options)
    : options_(std::move(options)) {}

void SpotRenter::note(const std::string& node, TakenPlace place) {
  const std::lock_guard lock(mutex_);
  places_[node] = std::move(place);
}

Result<bool> SpotRenter::rent(const std::string& node, const Absence& absence) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_ASSIGN(const auto alive, options_.machines->nodes());
  const auto old = std::ranges::find(alive, node, &fleet::Node::name);
  auto& since = missing_[node];
  since = since.value_or(os::real_clock().now());
  if (old != alive.end() && old->instance.launched <= absence.since) {
    if (!absence.is_leaving) {
      return false;
    }
    LOCKSTEP_TRY(options_.provider->terminate({old->instance.id}));
  }
  const bool may_pay = os::real_clock().now() - *since >= spot_wait();
  fleet::Plan plan = options_.plan;
  prefer_elsewhere(plan, options_.cluster, places_[node], may_pay);
  LOCKSTEP_TRY(keep_to_the_end(plan));
  LOCKSTEP_ASSIGN(
      const auto now, options_.machines->acquire(options_.cluster, plan));
  for (const fleet::Node& one : now) {
    if (one.name == node) {
      places_[node] = {one.instance.type, one.instance.zone};
      missing_.erase(node);
      return true;
    }
  }
  return false;
}

bool SpotRenter::has_ended(const std::string& node) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    return false;
  }
  const auto alive = options_.machines->nodes();
  return alive && std::ranges::count(*alive, node, &fleet::Node::name) == 0;
}

// Budget and duration count from the first machine: acquire takes off what
// was spent, the time that passed is taken off here.
Result<void> SpotRenter::keep_to_the_end(fleet::Plan& plan) {
  const fleet::Cluster& cluster = options_.cluster;
  if (!plan.longest_life || !cluster.max_duration) {
    return {};
  }
  const double passed = os::real_clock().unix_seconds() - options_.since;
  LOCKSTEP_ASSIGN(const auto cost, options_.machines->cost());
  const double spent =
      cluster.budget && plan.hourly_most > Money()
          ? cost.so_far.dollars() / plan.hourly_most.dollars() * 3600
          : 0;
  plan.longest_life = std::min(
      *plan.longest_life, *cluster.max_duration - from_seconds(passed - spent));
  return {};
}

}  // namespace lockstep::commands
