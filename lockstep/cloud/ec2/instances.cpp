// Machines of EC2: launched, listed, ended.

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/base64.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/cloud/user_data.h"

namespace lockstep::cloud::ec2 {
namespace {

constexpr const char* kNotThere = "InvalidInstanceID.NotFound";
// Values that one filter takes.
constexpr size_t kMostValues = 200;
constexpr size_t kLongestToken = 64;

Result<void> check_order(const LaunchOrder& order) {
  const auto bad = [](const std::string& words) {
    return cloud_error(Failure::kBadRequest, words);
  };
  if (order.token.empty() || order.token.size() > kLongestToken) {
    return bad("a launch needs a token of 1 to 64 characters");
  }
  if (order.type.empty() || order.image.empty()) {
    return bad("a launch needs a type and an image");
  }
  if (order.count < 1) {
    return bad(fmt::format("{} machines cannot be launched", order.count));
  }
  if (order.user_data.size() > kMostUserData) {
    return bad(
        fmt::format(
            "user-data has {} bytes; EC2 takes at most {}",
            order.user_data.size(),
            kMostUserData));
  }
  if (order.disk && order.root_device.empty()) {
    return bad("a disk size needs the image's root device");
  }
  if (order.tags.count(std::string(kClusterTag)) == 0) {
    return bad(fmt::format("a launch needs the tag {}", kClusterTag));
  }
  return {};
}

Call run_call(const LaunchOrder& order) {
  Call call("RunInstances", order.type);
  const std::string count = std::to_string(order.count);
  call.add("ClientToken", order.token)
      .add("InstanceType", order.type)
      .add("ImageId", order.image)
      .add("MinCount", count)
      .add("MaxCount", count)
      .add("InstanceInitiatedShutdownBehavior", "terminate")
      .add("MetadataOptions.HttpTokens", "required")
      // One more hop, so that containers of the machine reach it too.
      .add("MetadataOptions.HttpPutResponseHopLimit", "2")
      .add_list("SecurityGroupId", order.security_groups);
  const auto given = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) {
      call.add(name, value);
    }
  };
  given("KeyName", order.key_pair);
  given("SubnetId", order.subnet);
  given("Placement.AvailabilityZone", order.zone);
  given("Placement.GroupName", order.placement_group);
  given("UserData", base64(order.user_data));
  given(
      order.instance_profile.starts_with("arn:") ? "IamInstanceProfile.Arn"
                                                 : "IamInstanceProfile.Name",
      order.instance_profile);
  if (order.disk) {
    const uint64_t gibibytes = (order.disk->count + (1U << 30) - 1) >> 30;
    call.add("BlockDeviceMapping.1.DeviceName", order.root_device)
        .add("BlockDeviceMapping.1.Ebs.VolumeSize", std::to_string(gibibytes))
        .add("BlockDeviceMapping.1.Ebs.VolumeType", "gp3")
        .add("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true");
  }
  call.tag("instance", order.tags).tag("volume", order.tags);
  if (order.market == Market::kSpot) {
    const std::string options = "InstanceMarketOptions.SpotOptions.";
    call.add("InstanceMarketOptions.MarketType", "spot")
        .add(options + "SpotInstanceType", "one-time")
        .add(options + "InstanceInterruptionBehavior", "terminate")
        .tag("spot-instances-request", order.tags);
    if (order.bid) {
      call.add(
          options + "MaxPrice", fmt::format("{:.6f}", order.bid->dollars()));
    }
  }
  return call;
}

}  // namespace

Ec2::Ec2(Ec2Options options) : options_(std::move(options)) {
  if (options_.region.empty()) {
    options_.region = options_.client->region();
  }
}

Result<std::vector<Instance>> Ec2::launch(const LaunchOrder& order) {
  LOCKSTEP_TRY(check_order(order));
  LOCKSTEP_ASSIGN(
      const Reply reply,
      send(*options_.client, options_.region, run_call(order)));
  std::vector<Instance> launched;
  std::vector<std::string> ids;
  for (const pugi::xml_node& item :
       reply.root.child("instancesSet").children("item")) {
    launched.push_back(read_instance(item));
    launched.back().token = order.token;
    ids.push_back(launched.back().id);
  }
  if (launched.empty()) {
    return cloud_error(
        Failure::kTransient, "ec2:RunInstances: the answer names no machine");
  }
  // They are launched whatever comes now: a look that fails is no failure.
  Call look("DescribeInstances");
  look.add_list("InstanceId", ids).wait_for({kNotThere});
  std::vector<Instance> seen;
  const auto looked = each_item(
      *options_.client,
      options_.region,
      look,
      "reservationSet",
      0,
      [&](const pugi::xml_node& reservation) -> Result<void> {
        for (const pugi::xml_node& item :
             reservation.child("instancesSet").children("item")) {
          seen.push_back(read_instance(item));
          seen.back().token = order.token;
        }
        return {};
      });
  return looked && seen.size() == launched.size() ? seen : launched;
}

Result<std::vector<Instance>> Ec2::instances(const Selection& which) {
  std::vector<Instance> found;
  const auto read = [&](const pugi::xml_node& reservation) -> Result<void> {
    for (const pugi::xml_node& item :
         reservation.child("instancesSet").children("item")) {
      found.push_back(read_instance(item));
    }
    return {};
  };
  // By filter: naming ids would make one that is gone an error of all.
  for (size_t at = 0; at == 0 || at < which.ids.size(); at += kMostValues) {
    Call call("DescribeInstances");
    call.filter_tags(which.tags);
    if (!which.ids.empty()) {
      const size_t end = std::min(which.ids.size(), at + kMostValues);
      call.filter(
          "instance-id",
          {which.ids.begin() + static_cast<ptrdiff_t>(at),
           which.ids.begin() + static_cast<ptrdiff_t>(end)});
    }
    LOCKSTEP_TRY(each_item(
        *options_.client,
        options_.region,
        call,
        "reservationSet",
        options_.page,
        read));
  }
  return found;
}

Result<void> Ec2::terminate(const std::vector<std::string>& ids) {
  if (ids.empty()) {
    return {};
  }
  Call call("TerminateInstances");
  call.add_list("InstanceId", ids);
  fetch::AwsFault fault;
  auto ended = send(*options_.client, options_.region, call, &fault);
  if (ended) {
    return {};
  }
  if (failure_of(ended.error()) != Failure::kNotFound) {
    return Error(std::move(ended.error()));
  }
  // One of them is not there, or not there yet: all the others must end, and
  // one that was launched a moment ago too.
  for (const std::string& id : ids) {
    Call one("TerminateInstances", id);
    one.add_list("InstanceId", {id}).wait_for({kNotThere});
    auto alone = send(*options_.client, options_.region, one);
    if (!alone && failure_of(alone.error()) != Failure::kNotFound) {
      return Error(std::move(alone.error()));
    }
  }
  return {};
}

}  // namespace lockstep::cloud::ec2
