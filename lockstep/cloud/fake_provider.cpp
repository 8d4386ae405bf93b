#include "lockstep/cloud/fake_provider.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cloud/failure.h"

namespace lockstep::cloud {
namespace {

std::string order_text(const LaunchOrder& order) {
  return fmt::format(
      "{} {} {} {} {} {}",
      order.type,
      order.zone,
      order.count,
      to_string(order.market),
      order.image,
      order.user_data);
}

bool chosen(const std::string& id, const Tags& tags, const Selection& which) {
  return matches(tags, which.tags) &&
         (which.ids.empty() || std::ranges::count(which.ids, id) > 0);
}

}  // namespace

FakeProvider::FakeProvider(os::Clock& clock) : clock_(clock) {}

void FakeProvider::fail(
    const std::string& call,
    const Error& error,
    int times) {
  const std::lock_guard lock(mutex_);
  failures_[call].insert(
      failures_[call].end(), static_cast<size_t>(times), error);
}

void FakeProvider::lose_answer(const std::string& call, int times) {
  const std::lock_guard lock(mutex_);
  lost_[call] += times;
}

void FakeProvider::set_capacity(const std::string& type, int count) {
  const std::lock_guard lock(mutex_);
  capacity_[type] = count;
}

void FakeProvider::set_blindness(Duration age) {
  const std::lock_guard lock(mutex_);
  blindness_ = to_seconds(age);
}

std::vector<std::string> FakeProvider::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

size_t FakeProvider::num_live() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::ranges::count_if(machines_, &Instance::is_live));
}

size_t FakeProvider::num_launched() const {
  const std::lock_guard lock(mutex_);
  return machines_.size();
}

Result<void> FakeProvider::enter(const std::string& call) {
  calls_.push_back(call);
  auto& waiting = failures_[call];
  if (waiting.empty()) {
    return {};
  }
  Error error = waiting.front();
  waiting.erase(waiting.begin());
  return error;
}

Result<void> FakeProvider::leave(const std::string& call) {
  if (lost_[call] > 0) {
    --lost_[call];
    return cloud_error(
        Failure::kTransient, fmt::format("the answer to {} was lost", call));
  }
  return {};
}

bool FakeProvider::is_seen(double since) const {
  return clock_.unix_seconds() - since >= blindness_;
}

Result<std::vector<Offer>> FakeProvider::offers(
    const std::vector<std::string>& types) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("offers"));
  std::vector<Offer> offers;
  for (const std::string& type : types) {
    Offer offer;
    offer.type = type;
    offer.cpus = 4;
    offer.memory = Bytes{uint64_t{8} << 30};
    offer.architecture = "x86_64";
    offer.zones = {"nowhere-1a", "nowhere-1b"};
    offer.spot = true;
    offers.push_back(offer);
  }
  return offers;
}

Result<Quota> FakeProvider::quota(const Offer& offer, Market) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("quota"));
  Quota quota{"machines", "machines", 1000, 0};
  if (const auto found = capacity_.find(offer.type); found != capacity_.end()) {
    quota.limit = found->second;
  }
  quota.used = static_cast<double>(
      std::ranges::count_if(machines_, [&](const Instance& one) {
        return one.is_live() && one.type == offer.type;
      }));
  return quota;
}

Result<Image> FakeProvider::image(const ImageWish& wish) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("image"));
  Image image;
  image.id = wish.id.empty() ? "image-1" : wish.id;
  image.architecture = wish.architecture;
  image.root_device = "/dev/sda1";
  image.user = "root";
  return image;
}

Result<std::string> FakeProvider::key_pair(const KeyPairOrder& order) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("key_pair"));
  if (std::ranges::find(others_, order.name, &Resource::id) == others_.end()) {
    Resource one;
    one.kind = ResourceKind::kKeyPair;
    one.id = order.name;
    one.state = "there";
    one.created = clock_.unix_seconds();
    one.tags = order.tags;
    others_.push_back(one);
  }
  LOCKSTEP_TRY(leave("key_pair"));
  return order.name;
}

Result<std::string> FakeProvider::security_group(
    const SecurityGroupOrder& order) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("security_group"));
  if (!order.existing.empty()) {
    return order.existing;
  }
  const std::string id = "group-" + order.name;
  if (std::ranges::find(others_, id, &Resource::id) == others_.end()) {
    Resource one;
    one.kind = ResourceKind::kSecurityGroup;
    one.id = id;
    one.name = order.name;
    one.state = "there";
    one.created = clock_.unix_seconds();
    one.tags = order.tags;
    others_.push_back(one);
  }
  LOCKSTEP_TRY(leave("security_group"));
  return id;
}

Result<std::vector<Instance>> FakeProvider::launch(const LaunchOrder& order) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("launch"));
  const auto [known, is_new] = orders_.emplace(order.token, order_text(order));
  if (!is_new) {
    if (known->second != order_text(order)) {
      return cloud_error(
          Failure::kBadRequest,
          fmt::format("token {} stood for another order", order.token));
    }
    std::vector<Instance> before;
    std::ranges::copy_if(
        machines_, std::back_inserter(before), [&](const Instance& one) {
          return one.token == order.token;
        });
    LOCKSTEP_TRY(leave("launch"));
    return before;
  }
  const auto room = capacity_.find(order.type);
  const auto used = std::ranges::count_if(machines_, [&](const Instance& one) {
    return one.is_live() && one.type == order.type;
  });
  if (room != capacity_.end() && used + order.count > room->second) {
    orders_.erase(known);
    return cloud_error(
        Failure::kCapacity,
        fmt::format("{} of {} are there", room->second, order.type));
  }
  std::vector<Instance> launched;
  for (int i = 0; i < order.count; ++i) {
    ++number_;
    Instance one;
    one.id = fmt::format("i-{}", number_);
    one.type = order.type;
    one.zone = order.zone.empty() ? "nowhere-1a" : order.zone;
    one.state = InstanceState::kRunning;
    one.market = order.market;
    one.private_address = fmt::format("192.0.2.{}", number_ % 250 + 1);
    one.launched = clock_.unix_seconds();
    one.token = order.token;
    one.tags = order.tags;
    Resource disk;
    disk.kind = ResourceKind::kVolume;
    disk.id = fmt::format("vol-{}", number_);
    disk.state = "in-use";
    disk.zone = one.zone;
    disk.created = one.launched;
    disk.tags = order.tags;
    others_.push_back(disk);
    if (order.market == Market::kSpot) {
      one.spot_request = fmt::format("sir-{}", number_);
      Resource request = disk;
      request.kind = ResourceKind::kSpotRequest;
      request.id = one.spot_request;
      request.state = "active";
      others_.push_back(request);
    }
    machines_.push_back(one);
    launched.push_back(one);
  }
  LOCKSTEP_TRY(leave("launch"));
  return launched;
}

Result<std::vector<Instance>> FakeProvider::instances(const Selection& which) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("instances"));
  std::vector<Instance> found;
  std::ranges::copy_if(
      machines_, std::back_inserter(found), [&](const Instance& one) {
        return is_seen(one.launched) && chosen(one.id, one.tags, which);
      });
  return found;
}

void FakeProvider::end(const std::string& id) {
  const auto machine = std::ranges::find(machines_, id, &Instance::id);
  if (machine == machines_.end() || machine->state == InstanceState::kGone) {
    return;
  }
  machine->state = InstanceState::kGone;
  machine->reason = fmt::format(
      "Client.UserInitiatedShutdown: User initiated shutdown ({:%Y-%m-%d "
      "%H:%M:%S} GMT)",
      fmt::gmtime(static_cast<std::time_t>(clock_.unix_seconds())));
  const std::string number = id.substr(id.find('-') + 1);
  std::erase_if(others_, [&](const Resource& one) {
    return one.id == "vol-" + number || one.id == "sir-" + number;
  });
}

Result<void> FakeProvider::terminate(const std::vector<std::string>& ids) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("terminate"));
  std::ranges::for_each(ids, [&](const std::string& id) { end(id); });
  return leave("terminate");
}

Result<std::vector<Resource>> FakeProvider::resources(
    ResourceKind kind,
    const Selection& which) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("resources"));
  std::vector<Resource> found;
  std::ranges::copy_if(
      others_, std::back_inserter(found), [&](const Resource& one) {
        return one.kind == kind && is_seen(one.created) &&
               chosen(one.id, one.tags, which);
      });
  for (const Instance& one : machines_) {
    if (kind == ResourceKind::kInstance && is_seen(one.launched) &&
        chosen(one.id, one.tags, which)) {
      Resource machine;
      machine.id = one.id;
      machine.name = one.type;
      machine.state = to_string(one.state);
      machine.zone = one.zone;
      machine.created = one.launched;
      machine.tags = one.tags;
      machine.is_over = !one.is_live();
      found.push_back(machine);
    }
  }
  return found;
}

Result<void> FakeProvider::remove(ResourceKind kind, const std::string& id) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("remove"));
  if (kind == ResourceKind::kInstance) {
    end(id);
  } else {
    std::erase_if(others_, [&](const Resource& one) { return one.id == id; });
  }
  return leave("remove");
}

Result<void> FakeProvider::set_tags(
    const std::vector<std::string>& ids,
    const Tags& tags) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("set_tags"));
  for (Instance& one : machines_) {
    if (std::ranges::count(ids, one.id) > 0) {
      Tags all = tags;
      all.merge(one.tags);
      one.tags = all;
    }
  }
  return leave("set_tags");
}

Result<std::string> FakeProvider::bake_image(
    const std::string& instance,
    const std::string& name,
    const Tags&) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_TRY(enter("bake_image"));
  if (std::ranges::find(machines_, instance, &Instance::id) ==
      machines_.end()) {
    return cloud_error(Failure::kNotFound, instance);
  }
  return "image-" + name;
}

}  // namespace lockstep::cloud
