// A plan as JSON.

#include <fmt/format.h>

#include "lockstep/fleet/plan.h"

namespace lockstep::fleet {
namespace {

using nlohmann::json;

json money_json(const std::optional<Money>& money) {
  return money ? json(money->nanos()) : json();
}

std::optional<Money> money_of(const json& value) {
  if (value.is_null()) {
    return {};
  }
  return Money::from_nanos(value.get<int64_t>());
}

json place_json(const Place& place) {
  return {
      {"type", place.where.type},
      {"zone", place.where.zone},
      {"subnet", place.where.subnet},
      {"spot", place.where.market == cloud::Market::kSpot},
      {"image", place.where.image},
      {"root_device", place.root_device},
      {"user", place.user},
      {"disk", place.disk.count},
      {"hourly", money_json(place.hourly)},
      {"hourly_most", money_json(place.hourly_most)}};
}

Place place_of(const json& value) {
  Place place;
  value.at("type").get_to(place.where.type);
  value.at("zone").get_to(place.where.zone);
  value.at("subnet").get_to(place.where.subnet);
  place.where.market = value.at("spot").get<bool>() ? cloud::Market::kSpot
                                                    : cloud::Market::kOnDemand;
  value.at("image").get_to(place.where.image);
  value.at("root_device").get_to(place.root_device);
  value.at("user").get_to(place.user);
  place.disk = Bytes{value.at("disk").get<uint64_t>()};
  place.hourly = money_of(value.at("hourly"));
  place.hourly_most = money_of(value.at("hourly_most"));
  return place;
}

}  // namespace

json to_json(const Plan& plan) {
  json groups = json::array();
  for (const GroupPlan& group : plan.groups) {
    json places = json::array();
    for (const Place& place : group.places) {
      places.push_back(place_json(place));
    }
    groups.push_back({{"cpus", group.cpus}, {"places", std::move(places)}});
  }
  json value = {
      {"groups", std::move(groups)},
      {"hourly", plan.hourly.nanos()},
      {"hourly_most", plan.hourly_most.nanos()},
      {"price_known", plan.price_known}};
  if (plan.longest_life) {
    value["longest_life"] = plan.longest_life->count();
  }
  return value;
}

Result<Plan> plan_from_json(const json& value) {
  try {
    Plan plan;
    for (const json& one : value.at("groups")) {
      GroupPlan group;
      one.at("cpus").get_to(group.cpus);
      for (const json& place : one.at("places")) {
        group.places.push_back(place_of(place));
      }
      plan.groups.push_back(std::move(group));
    }
    plan.hourly = Money::from_nanos(value.at("hourly").get<int64_t>());
    plan.hourly_most =
        Money::from_nanos(value.at("hourly_most").get<int64_t>());
    value.at("price_known").get_to(plan.price_known);
    if (value.contains("longest_life")) {
      plan.longest_life = Duration(value["longest_life"].get<int64_t>());
    }
    return plan;
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt, fmt::format("this is no plan: {}", error.what()));
  }
}

}  // namespace lockstep::fleet
