// Keys and groups of EC2: what a machine needs to be reached, and by whom.

#include <arpa/inet.h>
#include <fmt/format.h>

#include <charconv>

#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/base64.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/ec2.h"

namespace lockstep::cloud::ec2 {
namespace {

Error bad(const std::string& words) {
  return cloud_error(Failure::kBadRequest, words);
}

// "ssh-ed25519 AAAA..." without the comment.
std::string key_body(const std::string& line) {
  const size_t first = line.find(' ');
  return first == std::string::npos ? line
                                    : line.substr(0, line.find(' ', first + 1));
}

// True for IPv6. A range of all addresses is refused: groups stay closed to
// the world.
Result<bool> check_range(const std::string& range) {
  const size_t slash = range.find('/');
  const std::string address = range.substr(0, slash);
  unsigned char bytes[16];
  const bool is_4 = inet_pton(AF_INET, address.c_str(), bytes) == 1;
  const bool is_6 = inet_pton(AF_INET6, address.c_str(), bytes) == 1;
  int length = -1;
  if (slash != std::string::npos) {
    const char* end = range.data() + range.size();
    const auto read = std::from_chars(range.data() + slash + 1, end, length);
    if (read.ec != std::errc() || read.ptr != end) {
      length = -1;
    }
  }
  if ((!is_4 && !is_6) || length < 0 || length > (is_4 ? 32 : 128)) {
    return bad(
        fmt::format(
            "'{}' is no range of addresses; accepted: 203.0.113.7/32, "
            "2001:db8::7/128",
            range));
  }
  if (length == 0) {
    return bad(fmt::format("{} would open ssh to the world", range));
  }
  return is_6;
}

constexpr int kLooks = 6;
constexpr Duration kPause = std::chrono::seconds(1);  // longer each time

bool is_seen(bool found) {
  return found;
}
bool is_seen(const std::vector<Resource>& found) {
  return !found.empty();
}

// What a refusal says is there may be seen only after a while.
template <class Look>
auto look_until_seen(os::Clock& clock, const Look& look) -> decltype(look()) {
  for (int number = 1;; ++number) {
    auto found = look();
    if (!found || is_seen(*found) || number == kLooks) {
      return found;
    }
    clock.sleep_for(number * kPause);
  }
}

bool is_ours(const Resource& one, const Tags& tags) {
  const auto cluster = tags.find(std::string(kClusterTag));
  return cluster != tags.end() && matches(one.tags, Tags{*cluster});
}

}  // namespace

Result<std::string> Ec2::key_pair(const KeyPairOrder& order) {
  const auto look = [&]() -> Result<bool> {
    Call call("DescribeKeyPairs", order.name);
    call.filter("key-name", {order.name}).add("IncludePublicKey", "true");
    LOCKSTEP_ASSIGN(
        const Reply reply, send(*options_.client, options_.region, call));
    const pugi::xml_node item = reply.root.child("keySet").child("item");
    if (!item) {
      return false;
    }
    if (!is_ours(read_key_pair(item), order.tags)) {
      return bad(
          fmt::format(
              "the key pair '{}' is there and not of this cluster",
              order.name));
    }
    const std::string there = fetch::xml_text(item, "publicKey");
    if (!there.empty() && key_body(there) != key_body(order.public_key)) {
      return bad(fmt::format("the key pair '{}' has another key", order.name));
    }
    return true;
  };
  LOCKSTEP_ASSIGN(const bool is_there, look());
  if (is_there) {
    return order.name;
  }
  Call call("ImportKeyPair", order.name);
  call.add("KeyName", order.name)
      .add("PublicKeyMaterial", base64(order.public_key))
      .tag("key-pair", order.tags);
  fetch::AwsFault fault;
  auto made = send(*options_.client, options_.region, call, &fault);
  // A repeated request may meet what its first try made.
  if (!made && fault.code == "InvalidKeyPair.Duplicate") {
    LOCKSTEP_ASSIGN(const bool now, look_until_seen(*options_.clock, look));
    if (now) {
      return order.name;
    }
  }
  if (!made) {
    return Error(std::move(made.error()));
  }
  return order.name;
}

Result<std::string> Ec2::network_of(const std::string& subnet) {
  Call call("DescribeSubnets", subnet);
  call.add_list("SubnetId", {subnet});
  LOCKSTEP_ASSIGN(
      const Reply reply, send(*options_.client, options_.region, call));
  return fetch::xml_text(reply.root, "subnetSet/item/vpcId");
}

Result<std::string> Ec2::security_group(const SecurityGroupOrder& order) {
  std::string network;
  if (!order.subnet.empty()) {
    LOCKSTEP_ASSIGN(network, network_of(order.subnet));
  }
  const std::string& wanted =
      order.existing.empty() ? order.name : order.existing;
  const auto look = [&]() -> Result<std::vector<Resource>> {
    Call call("DescribeSecurityGroups", wanted);
    call.filter(
        wanted.starts_with("sg-") ? "group-id" : "group-name", {wanted});
    if (!network.empty()) {
      call.filter("vpc-id", {network});
    }
    std::vector<Resource> found;
    LOCKSTEP_TRY(each_item(
        *options_.client,
        options_.region,
        call,
        "securityGroupInfo",
        0,
        [&](const pugi::xml_node& item) -> Result<void> {
          found.push_back(read_security_group(item));
          return {};
        }));
    return found;
  };
  LOCKSTEP_ASSIGN(std::vector<Resource> found, look());
  if (!order.existing.empty()) {
    if (found.empty()) {
      return cloud_error(
          Failure::kNotFound,
          fmt::format(
              "security group '{}' in {}{}",
              order.existing,
              options_.region,
              network.empty() ? "" : ", " + network));
    }
    if (found.size() > 1) {
      return bad(
          fmt::format(
              "{} security groups are called '{}'; give the id",
              found.size(),
              order.existing));
    }
    return found.front().id;
  }
  std::vector<bool> is_6;
  for (const std::string& range : order.ssh_from) {
    LOCKSTEP_ASSIGN(const bool six, check_range(range));
    is_6.push_back(six);
  }
  std::string id;
  if (found.empty()) {
    Call call("CreateSecurityGroup", order.name);
    call.add("GroupName", order.name)
        .add("GroupDescription", "lockstep: nodes of one cluster")
        .tag("security-group", order.tags);
    if (!network.empty()) {
      call.add("VpcId", network);
    }
    fetch::AwsFault fault;
    auto made = send(*options_.client, options_.region, call, &fault);
    if (made) {
      id = fetch::xml_text(made->root, "groupId");
    } else if (fault.code == "InvalidGroup.Duplicate") {
      LOCKSTEP_ASSIGN(found, look_until_seen(*options_.clock, look));
    }
    if (!made && found.empty()) {
      return Error(std::move(made.error()));
    }
  }
  if (!found.empty()) {
    if (!is_ours(found.front(), order.tags)) {
      return bad(
          fmt::format(
              "the security group '{}' is there and not of this cluster",
              order.name));
    }
    id = found.front().id;
  }
  // One call a rule: one that stands already refuses the whole call.
  const auto allow = [&](const fetch::Query& rule) -> Result<void> {
    Call call("AuthorizeSecurityGroupIngress", order.name);
    call.add("GroupId", id).wait_for({"InvalidGroup.NotFound"});
    for (const auto& [name, value] : rule) {
      call.add("IpPermissions.1." + name, value);
    }
    fetch::AwsFault fault;
    auto done = send(*options_.client, options_.region, call, &fault);
    if (!done && fault.code != "InvalidPermission.Duplicate") {
      return Error(std::move(done.error()));
    }
    return {};
  };
  LOCKSTEP_TRY(allow({{"IpProtocol", "-1"}, {"Groups.1.GroupId", id}}));
  for (size_t i = 0; i < order.ssh_from.size(); ++i) {
    LOCKSTEP_TRY(allow(
        {{"IpProtocol", "tcp"},
         {"FromPort", "22"},
         {"ToPort", "22"},
         {is_6[i] ? "Ipv6Ranges.1.CidrIpv6" : "IpRanges.1.CidrIp",
          order.ssh_from[i]}}));
  }
  return id;
}

}  // namespace lockstep::cloud::ec2
