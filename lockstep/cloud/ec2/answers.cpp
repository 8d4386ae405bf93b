#include "lockstep/cloud/ec2/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/cloud/ec2/calls.h"

namespace lockstep::cloud::ec2 {
namespace {

using fetch::xml_text;

// 0 for what is absent or no number: a detail must not hide a machine.
uint64_t number(const pugi::xml_node& node, const char* path) {
  const std::string text = xml_text(node, path);
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Bytes mebibytes(uint64_t count) {
  return Bytes{count << 20};
}
Bytes gibibytes(uint64_t count) {
  return Bytes{count << 30};
}

std::vector<std::string> texts(const pugi::xml_node& list) {
  std::vector<std::string> values;
  for (const pugi::xml_node& item : list.children("item")) {
    values.push_back(xml_text(item, "."));
  }
  return values;
}

InstanceState read_state(const std::string& name) {
  if (name == "running") {
    return InstanceState::kRunning;
  }
  if (name == "shutting-down") {
    return InstanceState::kEnding;
  }
  if (name == "terminated") {
    return InstanceState::kGone;
  }
  if (name == "stopping") {
    return InstanceState::kStopping;
  }
  return name == "stopped" ? InstanceState::kStopped : InstanceState::kPending;
}

// The better words are in stateReason, the time of the end is in reason alone:
// "User initiated (2026-11-15 18:00:00 GMT)".
std::string read_reason(const pugi::xml_node& item) {
  std::string words = xml_text(item, "stateReason/message");
  const std::string timed = xml_text(item, "reason");
  if (words.empty()) {
    return timed;
  }
  if (const size_t time = timed.rfind('('); time != std::string::npos) {
    words += " " + timed.substr(time);
  }
  return words;
}

}  // namespace

Tags read_tags(const pugi::xml_node& item) {
  Tags tags;
  for (const pugi::xml_node& tag : item.child("tagSet").children("item")) {
    tags[xml_text(tag, "key")] = xml_text(tag, "value");
  }
  return tags;
}

Instance read_instance(const pugi::xml_node& item) {
  Instance one;
  one.id = xml_text(item, "instanceId");
  one.type = xml_text(item, "instanceType");
  one.zone = xml_text(item, "placement/availabilityZone");
  one.state = read_state(xml_text(item, "instanceState/name"));
  one.reason = read_reason(item);
  one.market = xml_text(item, "instanceLifecycle") == "spot"
                   ? Market::kSpot
                   : Market::kOnDemand;
  one.spot_request = xml_text(item, "spotInstanceRequestId");
  one.private_address = xml_text(item, "privateIpAddress");
  one.public_address = xml_text(item, "ipAddress");
  one.launched = parse_time(xml_text(item, "launchTime"));
  one.tags = read_tags(item);
  one.token = xml_text(item, "clientToken");
  return one;
}

int read_cpus(const pugi::xml_node& item) {
  return static_cast<int>(
      number(item, "cpuOptions/coreCount") *
      std::max<uint64_t>(1, number(item, "cpuOptions/threadsPerCore")));
}

Offer read_offer(const pugi::xml_node& item) {
  Offer offer;
  offer.type = xml_text(item, "instanceType");
  offer.cpus = static_cast<int>(number(item, "vCpuInfo/defaultVCpus"));
  offer.memory = mebibytes(number(item, "memoryInfo/sizeInMiB"));
  for (const pugi::xml_node& gpu :
       item.child("gpuInfo").child("gpus").children("item")) {
    offer.accelerators.push_back(
        {xml_text(gpu, "name"),
         static_cast<int>(number(gpu, "count")),
         mebibytes(number(gpu, "memoryInfo/sizeInMiB"))});
  }
  // i386 stands beside x86_64 on old types.
  for (const std::string& name :
       texts(item.child("processorInfo").child("supportedArchitectures"))) {
    if (offer.architecture.empty() || name == "x86_64" || name == "arm64") {
      offer.architecture = name;
    }
  }
  offer.spot = std::ranges::count(
                   texts(item.child("supportedUsageClasses")), "spot") > 0;
  return offer;
}

Image read_image(const pugi::xml_node& item) {
  Image image;
  image.id = xml_text(item, "imageId");
  image.name = xml_text(item, "name");
  image.architecture = xml_text(item, "architecture");
  image.root_device = xml_text(item, "rootDeviceName");
  for (const pugi::xml_node& device :
       item.child("blockDeviceMapping").children("item")) {
    if (xml_text(device, "deviceName") == image.root_device) {
      image.disk = gibibytes(number(device, "ebs/volumeSize"));
    }
  }
  image.user = login_user(image.name);
  return image;
}

Resource read_spot_request(const pugi::xml_node& item) {
  Resource one;
  one.kind = ResourceKind::kSpotRequest;
  one.id = xml_text(item, "spotInstanceRequestId");
  one.name = xml_text(item, "launchSpecification/instanceType");
  one.state = xml_text(item, "state");
  one.zone = xml_text(item, "launchedAvailabilityZone");
  one.created = parse_time(xml_text(item, "createTime"));
  one.tags = read_tags(item);
  one.is_over = one.state == "closed" || one.state == "cancelled" ||
                one.state == "failed";
  return one;
}

Resource read_volume(const pugi::xml_node& item) {
  Resource one;
  one.kind = ResourceKind::kVolume;
  one.id = xml_text(item, "volumeId");
  one.name = format_bytes(gibibytes(number(item, "size")));
  one.state = xml_text(item, "status");
  one.zone = xml_text(item, "availabilityZone");
  one.created = parse_time(xml_text(item, "createTime"));
  one.tags = read_tags(item);
  one.is_over = one.state == "deleting" || one.state == "deleted";
  return one;
}

Resource read_key_pair(const pugi::xml_node& item) {
  Resource one;
  one.kind = ResourceKind::kKeyPair;
  // Launches name it so, and so it is deleted.
  one.id = xml_text(item, "keyName");
  one.name = xml_text(item, "keyPairId");
  one.state = "there";
  one.created = parse_time(xml_text(item, "createTime"));
  one.tags = read_tags(item);
  return one;
}

Resource read_security_group(const pugi::xml_node& item) {
  Resource one;
  one.kind = ResourceKind::kSecurityGroup;
  one.id = xml_text(item, "groupId");
  one.name = xml_text(item, "groupName");
  one.state = "there";
  one.tags = read_tags(item);
  return one;
}

Resource as_resource(const Instance& instance) {
  Resource one;
  one.kind = ResourceKind::kInstance;
  one.id = instance.id;
  one.name = instance.type;
  one.state = to_string(instance.state);
  one.zone = instance.zone;
  one.created = instance.launched;
  one.tags = instance.tags;
  one.is_over = !instance.is_live();
  return one;
}

std::string login_user(const std::string& image_name) {
  std::string lower = image_name;
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (lower.find("ubuntu") != std::string::npos) {
    return "ubuntu";
  }
  return lower.starts_with("debian") ? "admin" : "ec2-user";
}

}  // namespace lockstep::cloud::ec2
