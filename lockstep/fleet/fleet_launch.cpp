// What a fleet makes: keys, groups, machines.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/fallback.h"
#include "lockstep/cloud/user_data.h"
#include "lockstep/fleet/order.h"
#include "lockstep/fleet/work.h"

namespace lockstep::fleet {
namespace {

using nlohmann::json;

// A cloud that does not list a machine after that long has none.
constexpr double kSeenAfterSeconds = 120;

cloud::Tags
tags_of(const Cluster& cluster, const std::string& owner, double until) {
  cloud::Tags tags = cluster.tags;
  tags[std::string(cloud::kClusterTag)] = cluster.name;
  tags[std::string(cloud::kOwnerTag)] = owner;
  tags[std::string(kUntilTag)] = fmt::format("{:.0f}", std::ceil(until));
  return tags;
}

double claim_until(const Cluster& cluster, double now) {
  return now + to_seconds(cluster.ssh_timeout) +
         to_seconds(cluster.first_lease());
}

std::string place_text(const cloud::LaunchPlace& place) {
  std::string text = place.type;
  if (!place.zone.empty() || !place.subnet.empty()) {
    text += " in " + (place.zone.empty() ? place.subnet : place.zone);
  }
  return place.market == cloud::Market::kSpot ? text + " (spot)" : text;
}

bool is_head(const Cluster& cluster, size_t index) {
  return index == 0 && cluster.head_on_demand &&
         cluster.groups.front().use_spot != UseSpot::kNo;
}

bool fits(
    const Cluster& cluster,
    size_t index,
    size_t group,
    const Place& place) {
  const bool is_spot = place.where.market == cloud::Market::kSpot;
  if (is_head(cluster, index)) {
    return !is_spot;
  }
  return is_spot || cluster.groups[group].use_spot != UseSpot::kYes;
}

// So that others come near it.
void stay_near(std::vector<Place>& places, const std::string& zone) {
  for (Place& place : places) {
    if (place.where.zone.empty() && place.where.subnet.empty()) {
      place.where.zone = zone;
    }
  }
}

}  // namespace

Result<void> Fleet::make_access(Work& work) {
  const Cluster& cluster = work.cluster;
  const std::string name = access_name(cluster.name);
  const double until = claim_until(cluster, cloud_time());
  const cloud::Tags tags = tags_of(cluster, options_.owner, until);
  // Calls that make something are repeated by name: the cloud finds the first.
  LOCKSTEP_ASSIGN(
      const int key_step,
      options_.journal->begin("key-pair", name, {{"name", name}}));
  LOCKSTEP_ASSIGN(
      work.key_pair,
      options_.provider->key_pair(
          {.name = name, .public_key = options_.public_key, .tags = tags}));
  LOCKSTEP_TRY(options_.journal->done(key_step, {{"id", work.key_pair}}));
  cloud::SecurityGroupOrder group;
  group.existing = cluster.security_group;
  group.name = name;
  group.subnet = cluster.subnets.empty() ? "" : cluster.subnets.front();
  group.ssh_from = options_.ssh_from;
  group.tags = tags;
  LOCKSTEP_ASSIGN(
      const int group_step,
      options_.journal->begin(
          "security-group",
          group.existing.empty() ? name : group.existing,
          {{"existing", group.existing}}));
  LOCKSTEP_ASSIGN(
      work.security_group, options_.provider->security_group(group));
  return options_.journal->done(group_step, {{"id", work.security_group}});
}

// What lives already takes its slot; two of one name, and what nobody wants any
// more, are given back.
Result<void> Fleet::adopt(Work& work) {
  LOCKSTEP_ASSIGN(const auto found, nodes());
  std::vector<std::string> surplus;
  for (const Node& node : found) {
    const auto slot =
        std::ranges::find(work.slots, node.name, &Work::Slot::name);
    if (slot == work.slots.end() || slot->node) {
      say(fmt::format("{} ({}) is given back", node.name, node.instance.id));
      surplus.push_back(node.instance.id);
      continue;
    }
    slot->node = node;
    slot->node->group = slot->group;
    slot->was_there = true;
    if (const auto last = options_.journal->last("launch", node.name);
        last && !last->outcome) {
      slot->was_there = false;  // of a command that did not come to its end
      work.launched.insert(node.instance.id);
      LOCKSTEP_TRY(options_.journal->done(
          last->number,
          {{"id", node.instance.id},
           {"launched", node.instance.launched},
           {"hourly", node.hourly.nanos()}}));
    }
  }
  work.is_adopted = true;
  return end_machines(surplus);
}

Result<cloud::LaunchOrder> Fleet::order_of(const Work& work, size_t index) {
  const Work::Slot& slot = work.slots[index];
  const Cluster& cluster = work.cluster;
  const NodeGroup& group = cluster.groups[slot.group];
  int generation = 0;
  for (const JournalStep& step : options_.journal->steps()) {
    generation += step.step == "launch" && step.subject == slot.name ? 1 : 0;
  }
  cloud::LaunchOrder order;
  order.token = fmt::format("{}-{}-{}", work.id, slot.name, generation);
  order.bid = group.bid;
  order.key_pair = work.key_pair;
  order.security_groups = {work.security_group};
  order.placement_group = cluster.placement_group;
  order.instance_profile = cluster.instance_profile;
  order.tags =
      tags_of(cluster, options_.owner, claim_until(cluster, cloud_time()));
  order.tags[std::string(cloud::kNodeTag)] = slot.name;
  order.tags.emplace("Name", slot.name);
  return order;
}

Result<void> Fleet::launch_node(Work& work, size_t index, size_t first_place) {
  Work::Slot& slot = work.slots[index];
  Journal& journal = *options_.journal;
  const auto& places = work.plan.groups[slot.group].places;
  const auto take = [&](const cloud::Instance& instance,
                        size_t place,
                        int step) -> Result<void> {
    Node node;
    node.name = slot.name;
    node.group = slot.group;
    node.instance = instance;
    node.user = tag_of(instance.tags, kUserTag);
    if (node.user.empty()) {
      node.user = places[place].user;
    }
    const auto hourly = places[place].hourly_most;
    node.price_known = hourly.has_value();
    node.hourly = places[place].hourly.value_or(Money());
    {
      const std::lock_guard lock(work.mutex);
      slot.node = node;
      slot.next_place = place + 1;
      work.launched.insert(instance.id);
    }
    LOCKSTEP_TRY(journal.done(
        step,
        {{"id", instance.id},
         {"launched", instance.launched > 0 ? instance.launched : cloud_time()},
         {"hourly", hourly.value_or(node.hourly).nanos()}}));
    say(fmt::format(
        "{}: {} is launched ({})",
        slot.name,
        place_text(places[place].where),
        instance.id));
    return {};
  };
  // Of a command that died: look first, then repeat that attempt alone.
  if (const auto last = journal.last("launch", slot.name);
      last && !last->outcome) {
    LOCKSTEP_ASSIGN(const auto order, order_from_json(last->order));
    size_t place = 0;
    while (place + 1 < places.size() &&
           !(places[place].where.type == order.type &&
             places[place].where.zone == order.zone &&
             places[place].where.market == order.market)) {
      ++place;
    }
    const double age = options_.clock->unix_seconds() - last->time;
    // By now adopt() would have seen it: the attempt never arrived.
    auto again = age > kSeenAfterSeconds ? Result<std::vector<cloud::Instance>>(
                                               std::vector<cloud::Instance>())
                                         : options_.provider->launch(order);
    if (again) {
      const auto live = std::ranges::find_if(
          *again, [](const auto& one) { return one.is_live(); });
      if (live != again->end()) {
        return take(*live, place, last->number);
      }
      LOCKSTEP_TRY(journal.done(last->number, {{"over", true}}));
    } else if (cloud::is_shortage(again.error())) {
      LOCKSTEP_TRY(
          journal.done(last->number, {{"refused", again.error().message()}}));
    } else {
      return Error(std::move(again.error()))
          .with_context(fmt::format("launching {}", slot.name));
    }
  }
  std::string told;
  std::optional<Error> shortage;
  for (size_t i = first_place; i < places.size(); ++i) {
    if (is_stopped()) {
      return Error(ErrorCode::kInterrupted, "interrupted");
    }
    const Place& place = places[i];
    if (!fits(work.cluster, index, slot.group, place)) {
      continue;
    }
    LOCKSTEP_ASSIGN(cloud::LaunchOrder order, order_of(work, index));
    order.root_device = place.root_device;
    if (place.disk.count > 0 && !place.root_device.empty()) {
      order.disk = place.disk;
    }
    order.tags[std::string(kUserTag)] = place.user;
    cloud::UserDataOptions user_data;
    user_data.lease = work.cluster.first_lease();
    user_data.longest =
        std::max<Duration>(std::chrono::hours(24), user_data.lease);
    user_data.period = std::min<Duration>(
        std::chrono::seconds(5),
        std::max<Duration>(std::chrono::seconds(1), user_data.lease / 10));
    user_data.idle = work.cluster.idle;
    user_data.end = work.end > 0 ? work.end - kShutdownSeconds : 0;
    user_data.user = place.user;
    user_data.authorized_key = options_.public_key;
    LOCKSTEP_ASSIGN(order.user_data, make_user_data(user_data));
    const cloud::LaunchOrder exact = cloud::order_for(order, place.where);
    LOCKSTEP_ASSIGN(
        const int step, journal.begin("launch", slot.name, order_json(exact)));
    auto launched = options_.provider->launch(exact);
    if (launched && !launched->empty()) {
      return take(launched->front(), i, step);
    }
    if (!launched && cloud::is_shortage(launched.error())) {
      LOCKSTEP_TRY(
          journal.done(step, {{"refused", launched.error().message()}}));
      told += fmt::format(
          "{}{}: {}",
          told.empty() ? "" : "; ",
          place_text(place.where),
          launched.error().message());
      shortage = launched.error();
      continue;
    }
    // Nobody knows whether a machine came of it, unless the cloud said no.
    Error error = launched ? cloud::cloud_error(
                                 cloud::Failure::kTransient,
                                 "the answer names no machine")
                           : std::move(launched.error());
    const auto failure = cloud::failure_of(error);
    if (failure && failure != cloud::Failure::kTransient &&
        failure != cloud::Failure::kThrottled) {
      LOCKSTEP_TRY(journal.done(step, {{"refused", error.message()}}));
    }
    return std::move(error).with_context(
        fmt::format("launching {}", place_text(place.where)));
  }
  const bool is_quota =
      shortage && cloud::failure_of(*shortage) == cloud::Failure::kQuota;
  Error error = cloud::cloud_error(
      is_quota ? cloud::Failure::kQuota : cloud::Failure::kCapacity,
      told.empty() ? "no place is left" : told);
  return std::move(error).with_fix(
      is_quota && !shortage->fix().empty()
          ? shortage->fix()
          : "name further types (fallback) or zones, or try again later");
}

Result<void> Fleet::launch_all(Work& work) {
  std::vector<std::optional<Error>> failed(work.slots.size());
  side_by_side(work.plan.groups.size(), options_.side_by_side, [&](size_t g) {
    std::vector<size_t> missing;
    for (size_t i = 0; i < work.slots.size(); ++i) {
      if (work.slots[i].group == g && !work.slots[i].node) {
        missing.push_back(i);
      }
    }
    if (!missing.empty() && is_head(work.cluster, missing.front())) {
      if (auto done = launch_node(work, missing.front(), 0); !done) {
        failed[missing.front()] = std::move(done.error());
        return;
      }
      stay_near(
          work.plan.groups[g].places,
          work.slots[missing.front()].node->instance.zone);
      missing.erase(missing.begin());
    }
    if (missing.empty()) {
      return;
    }
    // The first finds the place; the others go there, so that they are near
    // each other and a shortage is met once.
    const size_t first = missing.front();
    if (auto done = launch_node(work, first, 0); !done) {
      failed[first] = std::move(done.error());
      return;
    }
    auto& places = work.plan.groups[g].places;
    const size_t found = work.slots[first].next_place - 1;
    const std::string zone = work.slots[first].node->instance.zone;
    if (places[found].where.zone.empty() &&
        places[found].where.subnet.empty()) {
      places[found].where.zone = zone;
    }
    side_by_side(missing.size() - 1, options_.side_by_side, [&](size_t i) {
      const size_t index = missing[i + 1];
      if (auto done = launch_node(work, index, found); !done) {
        failed[index] = std::move(done.error());
      }
    });
  });
  for (std::optional<Error>& error : failed) {
    // A shortage may leave enough; all else may not.
    if (error && !cloud::is_shortage(*error)) {
      return Error(std::move(*error));
    }
  }
  for (size_t g = 0; g < work.plan.groups.size(); ++g) {
    const NodeGroup& group = work.cluster.groups[g];
    if (work.alive(g) >= group.minimum) {
      continue;
    }
    for (size_t i = 0; i < failed.size(); ++i) {
      if (failed[i] && work.slots[i].group == g) {
        return std::move(*failed[i])
            .with_context(
                fmt::format(
                    "{} of {} {} (at least {})",
                    work.alive(g),
                    group.count,
                    group.type,
                    group.minimum));
      }
    }
  }
  return {};
}

}  // namespace lockstep::fleet
