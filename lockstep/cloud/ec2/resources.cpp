// Everything in EC2 that carries a tag of ours: listed, tagged, removed.

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/ec2.h"

namespace lockstep::cloud::ec2 {
namespace {

struct KindCall {
  const char* action;
  const char* list;
  const char* id_filter;
  int page;  // at most; 0: no pages
  Resource (*read)(const pugi::xml_node&);
};

KindCall call_of(ResourceKind kind) {
  switch (kind) {
    case ResourceKind::kSpotRequest:
      return {
          "DescribeSpotInstanceRequests",
          "spotInstanceRequestSet",
          "spot-instance-request-id",
          1000,
          read_spot_request};
    case ResourceKind::kKeyPair:
      return {"DescribeKeyPairs", "keySet", "key-name", 0, read_key_pair};
    case ResourceKind::kSecurityGroup:
      return {
          "DescribeSecurityGroups",
          "securityGroupInfo",
          "group-id",
          1000,
          read_security_group};
    case ResourceKind::kInstance:
    case ResourceKind::kVolume:
      break;
  }
  return {"DescribeVolumes", "volumeSet", "volume-id", 500, read_volume};
}

}  // namespace

Result<std::vector<Resource>> Ec2::resources(
    ResourceKind kind,
    const Selection& which) {
  std::vector<Resource> found;
  if (kind == ResourceKind::kInstance) {
    LOCKSTEP_ASSIGN(const auto machines, instances(which));
    std::ranges::transform(machines, std::back_inserter(found), as_resource);
    return found;
  }
  const KindCall way = call_of(kind);
  Call call(way.action);
  call.filter_tags(which.tags);
  if (!which.ids.empty()) {
    call.filter(way.id_filter, which.ids);
  }
  LOCKSTEP_TRY(each_item(
      *options_.client,
      options_.region,
      call,
      way.list,
      std::min(way.page, options_.page),
      [&](const pugi::xml_node& item) -> Result<void> {
        found.push_back(way.read(item));
        return {};
      }));
  return found;
}

Result<void> Ec2::remove(ResourceKind kind, const std::string& id) {
  if (kind == ResourceKind::kInstance) {
    return terminate({id});
  }
  const char* action = "DeleteVolume";
  const char* parameter = "VolumeId";
  if (kind == ResourceKind::kSpotRequest) {
    action = "CancelSpotInstanceRequests";
    parameter = "SpotInstanceRequestId.1";
  } else if (kind == ResourceKind::kKeyPair) {
    action = "DeleteKeyPair";
    parameter = "KeyName";
  } else if (kind == ResourceKind::kSecurityGroup) {
    action = "DeleteSecurityGroup";
    parameter = "GroupId";
  }
  Call call(action, id);
  call.add(parameter, id);
  auto removed = send(*options_.client, options_.region, call);
  if (!removed && failure_of(removed.error()) != Failure::kNotFound) {
    return Error(std::move(removed.error()));
  }
  return {};
}

Result<void> Ec2::set_tags(
    const std::vector<std::string>& ids,
    const Tags& tags) {
  if (ids.empty() || tags.empty()) {
    return {};
  }
  Call call("CreateTags");
  call.add_list("ResourceId", ids)
      .wait_for({"InvalidInstanceID.NotFound", "InvalidGroup.NotFound"});
  int number = 0;
  for (const auto& [key, value] : tags) {
    ++number;
    call.add(fmt::format("Tag.{}.Key", number), key);
    call.add(fmt::format("Tag.{}.Value", number), value);
  }
  LOCKSTEP_TRY(send(*options_.client, options_.region, call));
  return {};
}

Result<std::string> Ec2::bake_image(
    const std::string& instance,
    const std::string& name,
    const Tags& tags) {
  Call call("CreateImage", instance);
  call.add("InstanceId", instance)
      .add("Name", name)
      .tag("image", tags)
      .tag("snapshot", tags);
  LOCKSTEP_ASSIGN(
      const Reply reply, send(*options_.client, options_.region, call));
  return fetch::xml_text(reply.root, "imageId");
}

Result<bool> Ec2::may(const std::string& action) {
  Call call(action);
  call.add("DryRun", "true");
  if (action == "RunInstances") {
    call.add("ImageId", "ami-00000000000000000")
        .add("InstanceType", "t3.micro")
        .add("MinCount", "1")
        .add("MaxCount", "1");
  } else if (action == "CreateSecurityGroup") {
    call.add("GroupName", "lockstep-doctor")
        .add("GroupDescription", "lockstep: never made");
  } else if (action == "ImportKeyPair") {
    call.add("KeyName", "lockstep-doctor").add("PublicKeyMaterial", "AAAA");
  }
  fetch::AwsFault fault;
  auto asked = send(*options_.client, options_.region, call, &fault);
  if (asked || fault.code == "DryRunOperation") {
    return true;
  }
  const auto failure = failure_of(asked.error());
  if (failure == Failure::kPermission) {
    return false;
  }
  // It was let in, and stumbled over what we made up.
  if (failure == Failure::kNotFound || failure == Failure::kBadRequest) {
    return true;
  }
  return Error(std::move(asked.error()));
}

}  // namespace lockstep::cloud::ec2
