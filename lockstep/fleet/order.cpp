#include "lockstep/fleet/order.h"

#include <fmt/format.h>

namespace lockstep::fleet {

using nlohmann::json;

json order_json(const cloud::LaunchOrder& order) {
  json value = {
      {"token", order.token},
      {"type", order.type},
      {"zone", order.zone},
      {"count", order.count},
      {"spot", order.market == cloud::Market::kSpot},
      {"image", order.image},
      {"root_device", order.root_device},
      {"key_pair", order.key_pair},
      {"security_groups", order.security_groups},
      {"subnet", order.subnet},
      {"placement_group", order.placement_group},
      {"instance_profile", order.instance_profile},
      {"user_data", order.user_data},
      {"tags", order.tags}};
  if (order.bid) {
    value["bid"] = order.bid->nanos();
  }
  if (order.disk) {
    value["disk"] = order.disk->count;
  }
  return value;
}

Result<cloud::LaunchOrder> order_from_json(const json& value) {
  try {
    cloud::LaunchOrder order;
    value.at("token").get_to(order.token);
    value.at("type").get_to(order.type);
    value.at("zone").get_to(order.zone);
    value.at("count").get_to(order.count);
    order.market = value.at("spot").get<bool>() ? cloud::Market::kSpot
                                                : cloud::Market::kOnDemand;
    value.at("image").get_to(order.image);
    value.at("root_device").get_to(order.root_device);
    value.at("key_pair").get_to(order.key_pair);
    value.at("security_groups").get_to(order.security_groups);
    value.at("subnet").get_to(order.subnet);
    value.at("placement_group").get_to(order.placement_group);
    value.at("instance_profile").get_to(order.instance_profile);
    value.at("user_data").get_to(order.user_data);
    value.at("tags").get_to(order.tags);
    if (value.contains("bid")) {
      order.bid = Money::from_nanos(value["bid"].get<int64_t>());
    }
    if (value.contains("disk")) {
      order.disk = Bytes{value["disk"].get<uint64_t>()};
    }
    return order;
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("this is no order of a journal: {}", error.what()));
  }
}

}  // namespace lockstep::fleet
