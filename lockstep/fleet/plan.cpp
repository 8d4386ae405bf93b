#include "lockstep/fleet/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/budget.h"

namespace lockstep::fleet {
namespace {

using cloud::Market;
using cloud::Offer;

class Planner {
 public:
  Planner(
      cloud::Provider& provider,
      cloud::PriceBook& book,
      const Cluster& cluster,
      const std::vector<int>& have)
      : provider_(provider), book_(book), cluster_(cluster), have_(have) {}

  Result<Plan> plan() {
    LOCKSTEP_TRY(ask_offers());
    for (size_t i = 0; i < cluster_.groups.size(); ++i) {
      auto group = plan_group(cluster_.groups[i]);
      if (!group) {
        return Error(std::move(group.error()))
            .with_context("nodes." + cluster_.groups[i].type);
      }
      plan_.groups.push_back(std::move(*group));
    }
    LOCKSTEP_TRY(check_quota());
    LOCKSTEP_TRY(add_up());
    return std::move(plan_);
  }

 private:
  Result<void> ask_offers() {
    std::vector<std::string> types;
    for (const NodeGroup& group : cluster_.groups) {
      types.push_back(group.type);
      std::ranges::copy(group.fallback, std::back_inserter(types));
    }
    std::ranges::sort(types);
    types.erase(std::unique(types.begin(), types.end()), types.end());
    LOCKSTEP_ASSIGN(const auto offers, provider_.offers(types));
    for (const Offer& offer : offers) {
      offers_[offer.type] = offer;
    }
    return {};
  }

  Result<cloud::Image> image_for(const NodeGroup& group, const Offer& offer) {
    cloud::ImageWish wish;
    wish.id = group.image;
    wish.architecture = offer.architecture;
    wish.gpu = !offer.accelerators.empty();
    const std::string key =
        fmt::format("{}/{}/{}", wish.id, wish.architecture, wish.gpu);
    if (const auto found = images_.find(key); found != images_.end()) {
      return found->second;
    }
    LOCKSTEP_ASSIGN(cloud::Image image, provider_.image(wish));
    images_[key] = image;
    return image;
  }

  const std::vector<cloud::Price>& prices_of(const std::string& type) {
    if (const auto found = prices_.find(type); found != prices_.end()) {
      return found->second;
    }
    auto prices = book_.prices(type, provider_.region());
    if (!prices) {
      plan_.notes.push_back(prices.error().to_string());
    }
    return prices_[type] =
               prices ? std::move(*prices) : std::vector<cloud::Price>();
  }

  // Spot of that zone where it is known, else of the dearest.
  std::optional<cloud::Price>
  price_of(const std::string& type, Market market, const std::string& zone) {
    std::optional<cloud::Price> chosen;
    for (const cloud::Price& one : prices_of(type)) {
      if (one.market != market) {
        continue;
      }
      if (!zone.empty() && one.zone == zone) {
        return one;
      }
      if (!chosen || one.hourly > chosen->hourly) {
        chosen = one;
      }
    }
    return chosen;
  }

  std::vector<cloud::LaunchPlace> spots_of(const Offer& offer, Market market) {
    std::vector<cloud::LaunchPlace> spots;
    cloud::LaunchPlace one;
    one.type = offer.type;
    one.market = market;
    for (const std::string& subnet : cluster_.subnets) {
      one.subnet = subnet;
      spots.push_back(one);
    }
    if (!cluster_.subnets.empty()) {
      return spots;
    }
    std::vector<std::string> zones = cluster_.zones;
    if (zones.empty()) {
      zones = offer.zones;
      zones.insert(zones.begin(), "");  // the cloud's own choice first
    }
    for (const std::string& zone : zones) {
      if (zone.empty() || offer.zones.empty() ||
          std::ranges::count(offer.zones, zone) > 0) {
        one.zone = zone;
        spots.push_back(one);
      }
    }
    return spots;
  }

  // It may come down; until then nothing is to be had.
  void note_low_bid(
      const NodeGroup& group,
      Market market,
      const std::optional<cloud::Price>& now) {
    if (market == Market::kSpot && group.bid && now &&
        *group.bid < now->hourly) {
      plan_.notes.push_back(
          fmt::format(
              "the bid of {} for {} is below its spot price of {}",
              format_money(*group.bid),
              group.type,
              format_money(now->hourly)));
    }
  }

  Result<void>
  add_places(const NodeGroup& group, Market market, GroupPlan& plan) {
    std::vector<std::string> types = group.fallback;
    types.insert(types.begin(), group.type);
    for (const std::string& type : types) {
      const Offer& offer = offers_[type];
      if (market == Market::kSpot && !offer.spot) {
        return cloud::cloud_error(
            cloud::Failure::kBadRequest,
            fmt::format("{} cannot be had as spot", type));
      }
      LOCKSTEP_ASSIGN(const cloud::Image image, image_for(group, offer));
      for (cloud::LaunchPlace& where : spots_of(offer, market)) {
        Place place;
        place.where = std::move(where);
        place.where.image = image.id;
        place.root_device = image.root_device;
        place.user = cluster_.user.empty() ? image.user : cluster_.user;
        place.disk = std::max(group.disk.value_or(image.disk), image.disk);
        const Money disk = disk_hourly(place.disk);
        const auto now = price_of(type, market, place.where.zone);
        const auto top = price_of(type, Market::kOnDemand, "");
        if (now) {
          place.hourly = now->hourly + disk;
        }
        if (market == Market::kOnDemand) {
          place.hourly_most = place.hourly;
        } else if (group.bid || top) {
          place.hourly_most = (group.bid ? *group.bid : top->hourly) + disk;
        }
        if (!place.hourly) {
          place.hourly = place.hourly_most;
        }
        if (plan.places.empty()) {
          plan.price = now;
          plan.cpus = offer.cpus;
          note_low_bid(group, market, now);
        }
        plan.places.push_back(std::move(place));
      }
    }
    return {};
  }

  Result<GroupPlan> plan_group(const NodeGroup& group) {
    const bool has_head =
        cluster_.head_on_demand && &group == &cluster_.groups.front();
    GroupPlan plan;
    if (group.use_spot != UseSpot::kNo) {
      LOCKSTEP_TRY(add_places(group, Market::kSpot, plan));
    }
    if (group.use_spot != UseSpot::kYes || has_head) {
      LOCKSTEP_TRY(add_places(group, Market::kOnDemand, plan));
    }
    if (plan.places.empty()) {
      return cloud::cloud_error(
          cloud::Failure::kBadRequest,
          fmt::format(
              "none of the zones named has {} (it is in: {})",
              group.type,
              fmt::join(offers_[group.type].zones, ", ")));
    }
    return plan;
  }

  Result<void> check_quota() {
    std::map<std::string, double> needed;  // by quota
    for (size_t i = 0; i < plan_.groups.size(); ++i) {
      const NodeGroup& group = cluster_.groups[i];
      GroupPlan& plan = plan_.groups[i];
      const Market market = plan.places.front().where.market;
      auto quota = provider_.quota(offers_[group.type], market);
      if (!quota) {
        plan_.notes.push_back("quota not known: " + quota.error().to_string());
        continue;
      }
      plan.quota = *quota;
      const int there = i < have_.size() ? have_[i] : 0;
      const double per_node = quota->unit == "vCPUs" ? plan.cpus : 1;
      double& sum = needed[quota->name];
      sum += per_node * std::max(0, group.minimum - there);
      const bool has_other =
          !group.fallback.empty() || group.use_spot == UseSpot::kAuto;
      if (sum > quota->left() && !has_other) {
        return cloud::cloud_error(
                   cloud::Failure::kQuota,
                   fmt::format(
                       "{} {} of '{}' are left, {} are needed for {}",
                       quota->left(),
                       quota->unit,
                       quota->name,
                       sum,
                       group.type))
            .with_fix(
                "ask the cloud for more (Service Quotas), take fewer or "
                "smaller machines, or name a fallback");
      }
    }
    return {};
  }

  // A budget is only as good as the prices that it is counted by.
  void note_old_prices() {
    for (size_t i = 0; i < plan_.groups.size(); ++i) {
      const auto& price = plan_.groups[i].price;
      if (price && price->source == cloud::PriceSource::kTable) {
        plan_.notes.push_back(
            fmt::format(
                "the budget is counted by the built-in price of {}, which may "
                "be out of date; name yours under 'prices' in the user file",
                cluster_.groups[i].type));
      }
    }
  }

  Result<void> add_up() {
    for (size_t i = 0; i < plan_.groups.size(); ++i) {
      const int count = cluster_.groups[i].count;
      std::optional<Money> most;
      for (const Place& place : plan_.groups[i].places) {
        if (place.hourly_most) {
          most = std::max(most.value_or(Money()), *place.hourly_most);
        } else {
          plan_.price_known = false;
        }
      }
      const Place& first = plan_.groups[i].places.front();
      plan_.hourly = plan_.hourly + first.hourly.value_or(Money()) * count;
      plan_.hourly_most = plan_.hourly_most + most.value_or(Money()) * count;
    }
    if (!plan_.price_known && cluster_.budget &&
        !cluster_.price_may_be_unknown) {
      std::string types;
      for (const GroupPlan& group : plan_.groups) {
        for (const Place& place : group.places) {
          if (!place.hourly_most &&
              types.find(place.where.type) == std::string::npos) {
            types += (types.empty() ? "" : ", ") + place.where.type;
          }
        }
      }
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format(
                     "nobody knows the price of {}, and a budget is set",
                     types))
          .with_fix(
              "name it under 'prices' in the user file, or set "
              "price_may_be_unknown: true");
    }
    if (cluster_.budget) {
      note_old_prices();
    }
    Budget budget({
        .cap = cluster_.budget,
        .max_duration = cluster_.max_duration,
        .stopping = Duration(0),
        .stored = {},
    });
    LOCKSTEP_TRY(budget.check(plan_.hourly_most, cluster_.num_nodes()));
    plan_.longest_life = budget.longest_life(plan_.hourly_most);
    return {};
  }

  cloud::Provider& provider_;
  cloud::PriceBook& book_;
  const Cluster& cluster_;
  const std::vector<int>& have_;
  std::map<std::string, Offer> offers_;
  std::map<std::string, cloud::Image> images_;
  std::map<std::string, std::vector<cloud::Price>> prices_;
  Plan plan_;
};

}  // namespace

Result<Plan> make_plan(
    cloud::Provider& provider,
    cloud::PriceBook& prices,
    const Cluster& cluster,
    const std::vector<int>& have) {
  return Planner(provider, prices, cluster, have).plan();
}

}  // namespace lockstep::fleet
