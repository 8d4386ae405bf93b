#include "lockstep/cloud/hosts/hosts.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/nearest.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/os/clock.h"

namespace lockstep::cloud {
namespace {

Error not_here(const std::string& what) {
  return cloud_error(
      Failure::kBadRequest, fmt::format("own hosts have no {}", what));
}

bool chosen(const Instance& one, const Selection& which) {
  return matches(one.tags, which.tags) &&
         (which.ids.empty() || std::ranges::count(which.ids, one.id) > 0);
}

}  // namespace

OwnHosts::OwnHosts(std::vector<OwnHost> hosts) {
  for (OwnHost& host : hosts) {
    hosts_.push_back({std::move(host), {}});
  }
}

Result<std::vector<Offer>> OwnHosts::offers(
    const std::vector<std::string>& types) {
  std::vector<Offer> offers;
  std::vector<std::string> names;
  for (const Held& held : hosts_) {
    const OwnHost& host = held.host;
    if (std::ranges::count(names, host.type) > 0) {
      continue;
    }
    names.push_back(host.type);
    if (types.empty() || std::ranges::count(types, host.type) > 0) {
      Offer offer;
      offer.type = host.type;
      offer.cpus = host.cpus;
      offer.memory = host.memory;
      offer.accelerators = host.accelerators;
      offer.architecture = host.architecture;
      offers.push_back(offer);
    }
  }
  for (const std::string& type : types) {
    if (std::ranges::count(names, type) == 0) {
      return cloud_error(
          Failure::kBadRequest,
          fmt::format("no own host is a '{}'; {}", type, suggest(type, names)));
    }
  }
  return offers;
}

Result<Quota> OwnHosts::quota(const Offer& offer, Market market) {
  if (market == Market::kSpot) {
    return not_here("spot market");
  }
  const std::lock_guard lock(mutex_);
  Quota quota{"own hosts", "hosts", 0, 0};
  for (const Held& held : hosts_) {
    if (held.host.type == offer.type) {
      quota.limit += 1;
      quota.used += held.instance ? 1 : 0;
    }
  }
  return quota;
}

Result<Image> OwnHosts::image(const ImageWish& wish) {
  if (!wish.id.empty()) {
    return not_here("images");
  }
  Image image;
  image.architecture = wish.architecture;
  return image;
}

Result<std::string> OwnHosts::key_pair(const KeyPairOrder&) {
  return std::string();
}

Result<std::string> OwnHosts::security_group(const SecurityGroupOrder&) {
  return std::string();
}

Result<std::vector<Instance>> OwnHosts::launch(const LaunchOrder& order) {
  if (order.token.empty() || order.count < 1) {
    return cloud_error(
        Failure::kBadRequest, "a launch needs a token and a count from 1");
  }
  if (order.market == Market::kSpot) {
    return not_here("spot market");
  }
  if (!order.image.empty() || order.disk || !order.user_data.empty()) {
    return not_here("images, disks or user-data");
  }
  const std::lock_guard lock(mutex_);
  std::vector<Instance> given;
  std::vector<Held*> free;
  for (Held& held : hosts_) {
    if (held.instance && held.instance->token == order.token) {
      given.push_back(*held.instance);
    } else if (!held.instance && held.host.type == order.type) {
      free.push_back(&held);
    }
  }
  if (!given.empty()) {
    return given;  // asked before
  }
  if (free.size() < static_cast<size_t>(order.count)) {
    return cloud_error(
               Failure::kCapacity,
               fmt::format(
                   "{} own hosts of type '{}' are wanted and {} {} free",
                   order.count,
                   order.type,
                   free.size(),
                   free.size() == 1 ? "is" : "are"))
        .with_fix("name more hosts, or ask for fewer");
  }
  free.resize(static_cast<size_t>(order.count));
  for (Held* held : free) {
    Instance one;
    one.id = held->host.name;
    one.type = held->host.type;
    one.state = InstanceState::kRunning;
    one.private_address = held->host.name;
    one.launched = os::real_clock().unix_seconds();
    one.token = order.token;
    one.tags = order.tags;
    held->instance = one;
    given.push_back(std::move(one));
  }
  return given;
}

Result<std::vector<Instance>> OwnHosts::instances(const Selection& which) {
  const std::lock_guard lock(mutex_);
  std::vector<Instance> found;
  for (const Held& held : hosts_) {
    if (held.instance && chosen(*held.instance, which)) {
      found.push_back(*held.instance);
    }
  }
  return found;
}

Result<void> OwnHosts::terminate(const std::vector<std::string>& ids) {
  const std::lock_guard lock(mutex_);
  for (Held& held : hosts_) {
    if (std::ranges::count(ids, held.host.name) > 0) {
      held.instance.reset();
    }
  }
  return {};
}

Result<std::vector<Resource>> OwnHosts::resources(
    ResourceKind kind,
    const Selection& which) {
  std::vector<Resource> found;
  if (kind != ResourceKind::kInstance) {
    return found;
  }
  LOCKSTEP_ASSIGN(const auto machines, instances(which));
  for (const Instance& one : machines) {
    Resource resource;
    resource.id = one.id;
    resource.name = one.type;
    resource.state = to_string(one.state);
    resource.created = one.launched;
    resource.tags = one.tags;
    found.push_back(resource);
  }
  return found;
}

Result<void> OwnHosts::remove(ResourceKind kind, const std::string& id) {
  return kind == ResourceKind::kInstance ? terminate({id}) : Result<void>();
}

Result<void> OwnHosts::set_tags(
    const std::vector<std::string>& ids,
    const Tags& tags) {
  const std::lock_guard lock(mutex_);
  for (Held& held : hosts_) {
    if (held.instance && std::ranges::count(ids, held.host.name) > 0) {
      for (const auto& [key, value] : tags) {
        held.instance->tags[key] = value;
      }
    }
  }
  return {};
}

Result<std::string>
OwnHosts::bake_image(const std::string&, const std::string&, const Tags&) {
  return not_here("images");
}

}  // namespace lockstep::cloud
