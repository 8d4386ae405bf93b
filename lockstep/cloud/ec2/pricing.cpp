#include "lockstep/cloud/ec2/pricing.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/cloud/ec2/calls.h"

namespace lockstep::cloud::ec2 {
namespace {

using nlohmann::json;

// The price list stands in a few regions and knows the prices of all.
constexpr const char* kPricingRegion = "us-east-1";
constexpr const char* kProduct = "Linux/UNIX";
// The newest of each zone may be some hours old: prices that do not move are
// not told again.
constexpr double kHistory = 3 * 3600;

Error strange(const std::string& what) {
  return cloud_error(
      Failure::kTransient,
      fmt::format("pricing:GetProducts: an answer that {}", what));
}

std::string products_body(const std::string& type, const std::string& region) {
  const std::pair<const char*, std::string> filters[] = {
      {"instanceType", type},
      {"regionCode", region},
      {"operatingSystem", "Linux"},
      {"tenancy", "Shared"},
      {"preInstalledSw", "NA"},
      {"capacitystatus", "Used"},
  };
  json body = {{"ServiceCode", "AmazonEC2"}, {"FormatVersion", "aws_v1"}};
  for (const auto& [field, value] : filters) {
    body["Filters"].push_back(
        {{"Type", "TERM_MATCH"}, {"Field", field}, {"Value", value}});
  }
  return body.dump();
}

Result<std::optional<Money>> on_demand(
    fetch::AwsClient& client,
    const std::string& type,
    const std::string& region) {
  LOCKSTEP_ASSIGN(
      const std::string answer,
      send_json(
          client,
          kPricingRegion,
          "pricing",
          "AWSPriceListService.GetProducts",
          products_body(type, region)));
  const json told = json::parse(answer, nullptr, false);
  if (!told.is_object() || !told.contains("PriceList") ||
      !told["PriceList"].is_array()) {
    return strange("has no PriceList");
  }
  std::optional<Money> dearest;
  for (const json& entry : told["PriceList"]) {
    LOCKSTEP_ASSIGN(
        const std::optional<Money> price,
        read_product(
            entry.is_string() ? entry.get<std::string>() : entry.dump()));
    if (price && (!dearest || *price > *dearest)) {
      dearest = price;
    }
  }
  return dearest;
}

Result<std::vector<Price>> spot(
    fetch::AwsClient& client,
    const std::string& type,
    const std::string& region,
    double now) {
  Call call("DescribeSpotPriceHistory", type);
  call.add_list("InstanceType", {type})
      .add_list("ProductDescription", {kProduct})
      .add(
          "StartTime",
          fmt::format(
              "{:%Y-%m-%dT%H:%M:%SZ}",
              fmt::gmtime(static_cast<std::time_t>(now - kHistory))));
  std::map<std::string, Price> newest;
  const auto read = each_item(
      client,
      region,
      call,
      "spotPriceHistorySet",
      1000,
      [&](const pugi::xml_node& item) -> Result<void> {
        Price price;
        price.type = type;
        price.region = region;
        price.zone = fetch::xml_text(item, "availabilityZone");
        price.market = Market::kSpot;
        price.source = PriceSource::kApi;
        price.as_of = parse_time(fetch::xml_text(item, "timestamp"));
        LOCKSTEP_ASSIGN(
            price.hourly, parse_money(fetch::xml_text(item, "spotPrice")));
        Price& kept = newest[price.zone];
        if (kept.as_of <= price.as_of) {
          kept = price;
        }
        return {};
      });
  if (!read) {
    return Error(read.error());
  }
  std::vector<Price> prices;
  for (const auto& [zone, price] : newest) {
    prices.push_back(price);
  }
  std::ranges::stable_sort(prices, {}, &Price::hourly);
  return prices;
}

}  // namespace

Result<std::optional<Money>> read_product(const std::string& text) {
  const json product = json::parse(text, nullptr, false);
  if (!product.is_object()) {
    return strange("holds a product that is not JSON");
  }
  const auto member = [](const json& node, const char* key) -> const json& {
    static const json kNone = json::object();
    return node.is_object() && node.contains(key) && node[key].is_object()
               ? node[key]
               : kNone;
  };
  for (const auto& [term, value] :
       member(member(product, "terms"), "OnDemand").items()) {
    for (const auto& [name, dimension] :
         member(value, "priceDimensions").items()) {
      if (!dimension.is_object() || dimension.value("unit", "") != "Hrs") {
        continue;
      }
      const std::string dollars =
          member(dimension, "pricePerUnit").value("USD", "");
      const auto money = parse_money(dollars);
      if (!money) {
        return strange(fmt::format("prices at '{}'", dollars));
      }
      if (*money > Money()) {
        return std::optional<Money>(*money);
      }
    }
  }
  return std::optional<Money>();
}

Result<std::vector<Price>> ApiPrices::prices(
    const std::string& type,
    const std::string& region) {
  std::vector<Price> found;
  if (ask_list_) {
    const auto listed = on_demand(client_, type, region);
    if (listed && *listed) {
      Price price;
      price.type = type;
      price.region = region;
      price.hourly = **listed;
      price.source = PriceSource::kApi;
      price.as_of = clock_.unix_seconds();
      found.push_back(price);
    } else if (!listed) {
      ask_list_ = false;
      problems_.push_back(listed.error());
      // Nobody to sign as: the other service would say the same.
      if (failure_of(listed.error()) == Failure::kCredentials) {
        ask_spot_ = false;
      }
    }
  }
  if (ask_spot_) {
    auto zones = spot(client_, type, region, clock_.unix_seconds());
    if (zones) {
      std::ranges::move(*zones, std::back_inserter(found));
    } else if (failure_of(zones.error()) != Failure::kBadRequest) {
      ask_spot_ = false;
      problems_.push_back(zones.error());
    }
  }
  return found;
}

}  // namespace lockstep::cloud::ec2
