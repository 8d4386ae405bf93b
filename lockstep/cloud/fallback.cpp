#include "lockstep/cloud/fallback.h"

#include <fmt/format.h>

#include "lockstep/cloud/failure.h"
#include "lockstep/fetch/sigv4.h"

namespace lockstep::cloud {
namespace {

// What a cloud takes at most.
constexpr size_t kLongestToken = 64;
constexpr size_t kPlaceDigits = 8;

std::string place_text(const LaunchPlace& place) {
  std::string text = place.type;
  if (!place.zone.empty()) {
    text += " in " + place.zone;
  }
  if (!place.subnet.empty()) {
    text += " (" + place.subnet + ")";
  }
  if (place.market == Market::kSpot) {
    text += ", spot";
  }
  return text;
}

}  // namespace

LaunchOrder order_for(const LaunchOrder& order, const LaunchPlace& place) {
  LaunchOrder one = order;
  one.type = place.type;
  one.zone = place.zone;
  one.market = place.market;
  if (!place.subnet.empty()) {
    one.subnet = place.subnet;
  }
  if (!place.image.empty()) {
    one.image = place.image;
  }
  if (place.market == Market::kOnDemand) {
    one.bid.reset();
  }
  const std::string digest = fetch::sha256_hex(
      fmt::format(
          "{}\n{}\n{}\n{}\n{}",
          one.type,
          one.zone,
          one.subnet,
          to_string(one.market),
          one.image));
  // The start of two long tokens may be the same; their digests are not.
  std::string token = order.token;
  if (token.size() > kLongestToken - kPlaceDigits - 1) {
    token = fetch::sha256_hex(token).substr(0, 40);
  }
  one.token = fmt::format("{}-{}", token, digest.substr(0, kPlaceDigits));
  one.tags[std::string(kTokenTag)] = order.token;
  return one;
}

Result<Launched> launch_anywhere(
    Provider& provider,
    const LaunchOrder& order,
    const std::vector<LaunchPlace>& places,
    const std::function<Result<void>(const LaunchOrder&)>& before) {
  if (places.empty()) {
    return cloud_error(Failure::kBadRequest, "no type of machine is named");
  }
  std::vector<std::string> refused;
  Failure last = Failure::kCapacity;
  std::string fix;
  for (const LaunchPlace& place : places) {
    const LaunchOrder one = order_for(order, place);
    if (before) {
      LOCKSTEP_TRY(before(one));
    }
    auto instances = provider.launch(one);
    if (instances) {
      return Launched{place, std::move(*instances), std::move(refused)};
    }
    if (!is_shortage(instances.error())) {
      return Error(std::move(instances.error()))
          .with_context(fmt::format("launching {}", place_text(place)));
    }
    last = *failure_of(instances.error());
    fix = instances.error().fix();
    refused.push_back(
        fmt::format("{}: {}", place_text(place), instances.error().message()));
  }
  std::string told;
  for (const std::string& one : refused) {
    told += (told.empty() ? "" : "; ") + one;
  }
  return cloud_error(last, told)
      .with_fix(
          last == Failure::kQuota && !fix.empty()
              ? fix
              : "name further types or zones, or try again later");
}

}  // namespace lockstep::cloud
