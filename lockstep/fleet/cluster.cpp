#include "lockstep/fleet/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/nearest.h"
#include "lockstep/base/text.h"

namespace lockstep::fleet {
namespace {

constexpr int kMostGroups = 26;  // a letter each
constexpr size_t kLongestName = 40;
constexpr size_t kMostTags = 30;  // EC2 takes 50 with ours

using nlohmann::json;

// Debian and Ubuntu have it as a package; the user may use it without sudo.
constexpr const char* kDocker = R"sh(set -e
sudo=''; [ "$(id -u)" -eq 0 ] || sudo='sudo -n'
if ! command -v docker >/dev/null 2>&1; then
  $sudo apt-get -qq -o DPkg::Lock::Timeout=300 update
  DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq -y \
    -o DPkg::Lock::Timeout=300 install docker.io
fi
[ "$(id -u)" -eq 0 ] || $sudo usermod -aG docker "$(id -un)"
$sudo docker version --format '{{.Server.Version}}'
)sh";

const std::map<std::string, const char*>& ready_made() {
  static const std::map<std::string, const char*> kSteps = {
      {"docker", kDocker}};
  return kSteps;
}

Result<UseSpot> parse_use_spot(const std::string& text) {
  for (const UseSpot one : {UseSpot::kNo, UseSpot::kYes, UseSpot::kAuto}) {
    if (text == to_string(one)) {
      return one;
    }
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("'{}'; accepted: true, false, auto", text));
}

Result<std::vector<std::string>> text_or_list(
    const config::Node& node,
    const std::string& key) {
  std::vector<std::string> items;
  const auto add = [&](const config::Node& one) -> Result<void> {
    if (one.kind() != config::Node::Kind::kScalar) {
      return config::invalid_at(
          one.place(), fmt::format("{}: a text or a list of texts", key));
    }
    items.push_back(one.text());
    return {};
  };
  if (node.kind() == config::Node::Kind::kList) {
    for (const config::Node& one : node.items()) {
      LOCKSTEP_TRY(add(one));
    }
  } else if (!node.is_null()) {
    LOCKSTEP_TRY(add(node));
  }
  return items;
}

struct GroupFile {
  int count = 1;
  std::optional<int> minimum;
  std::string use_spot = "false";
  std::optional<Money> bid;
  std::vector<std::string> fallback;
  config::Node setup;
  std::string image_id;
  std::optional<Bytes> disk;
  void bind(config::Binder& binder) {
    binder.field("count", count, "machines", config::between(1, 1000));
    binder.field(
        "minimum",
        minimum,
        "fewer are a failure; absent: count",
        config::at_least(1));
    binder.text(
        "use_spot",
        use_spot,
        "true, false or auto (on demand when there is none)",
        [](const std::string& text) -> Result<void> {
          LOCKSTEP_TRY(parse_use_spot(text));
          return {};
        });
    binder.field("bid", bid, "most dollars an hour, spot", config::above(0));
    binder.field("fallback", fallback, "further types, when this is short");
    binder.raw("setup", setup, "shell text, 'docker', or a list of them");
    binder.field("image_id", image_id, "machine image; absent: a current one");
    binder.field("disk", disk, "size of the root disk");
  }
};

struct ClusterFile {
  Cluster cluster;
  config::Node nodes, subnet;
  std::map<std::string, std::string> tags;
  std::string image_id;
  void bind(config::Binder& binder) {
    Cluster& c = cluster;
    binder.text("name", c.name, "of the cluster", check_cluster_name);
    binder.choice("cloud", c.cloud, {"aws"}, "where machines are rented");
    binder.field("region", c.region, "of the cloud; absent: the user's");
    binder.raw("nodes", nodes, "{TYPE: {count, minimum, use_spot, setup}}");
    binder.field("zones", c.zones, "in order of preference; absent: any");
    binder.raw("subnet", subnet, "one, or a list in order of preference");
    binder.field("key", c.key, "private key file; absent: one is made");
    binder.field(
        "security_group",
        c.security_group,
        "one that is there, used as it is; absent: one is made");
    binder.field(
        "ssh_from",
        c.ssh_from,
        "address ranges that may reach ssh; absent: this machine's address");
    binder.field("placement_group", c.placement_group, "one that is there");
    binder.field("instance_profile", c.instance_profile, "role of the nodes");
    binder.field("image_id", image_id, "of all groups that name none");
    binder.field("user", c.user, "who logs in; absent: the image's");
    binder.field("disk", c.disk, "size of the root disk");
    binder.field("tags", tags, "more tags of all that is made");
    binder.field(
        "idle",
        c.idle,
        "without a run and an ssh session for so long: given back",
        config::between(10, 24 * 3600));
    binder.field(
        "lease",
        c.lease,
        "the first lease, from boot; absent: as idle",
        config::between(10, 24 * 3600));
    binder.field(
        "ssh_timeout",
        c.ssh_timeout,
        "a machine that does not answer for so long is given back",
        config::above(0));
    binder.field(
        "setup_timeout", c.setup_timeout, "of all steps", config::above(0));
    binder.field("budget", c.budget, "most dollars", config::above(0));
    binder.field(
        "max_duration",
        c.max_duration,
        "machines live no longer",
        config::above(0));
    binder.field(
        "price_may_be_unknown",
        c.price_may_be_unknown,
        "start under a budget although nobody knows the price");
  }
};

bool is_group_key(const std::string& key) {
  static const std::set<std::string> kKeys = [] {
    std::set<std::string> keys;
    for (const config::FieldDoc& doc : config::describe<GroupFile>()) {
      keys.insert(doc.key.substr(0, doc.key.find('.')));
    }
    return keys;
  }();
  return kKeys.contains(key);
}

// Types have a dot, and a dot nests: both ways of writing one are the same.
void flatten(
    const std::string& prefix,
    const config::Node& node,
    std::vector<std::pair<std::string, config::Node>>& types) {
  for (const auto& [key, value] : node.entries()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    const auto& below = value.entries();
    const bool is_family =
        value.kind() == config::Node::Kind::kMap && !below.empty() &&
        std::ranges::none_of(
            below, [](const auto& one) { return is_group_key(one.first); }) &&
        std::ranges::all_of(
            below,
            [](const auto& one) {
              return one.second.kind() != config::Node::Kind::kList;
            }) &&
        name.find('.') == std::string::npos;
    if (is_family) {
      flatten(name, value, types);
    } else {
      types.emplace_back(name, value);
    }
  }
}

Result<NodeGroup> read_group(
    const std::string& type,
    const config::Node& node,
    const ClusterFile& file) {
  GroupFile read;
  if (node.kind() == config::Node::Kind::kScalar) {
    config::Node map = config::Node::map(node.place());
    map.set("count", node);
    LOCKSTEP_ASSIGN(read, config::read<GroupFile>(map));
  } else if (!node.is_null()) {
    auto done = config::read<GroupFile>(node);
    if (!done) {
      return Error(std::move(done.error())).with_context("nodes." + type);
    }
    read = std::move(*done);
  }
  const auto bad = [&](const std::string& words) {
    return config::invalid_at(
        node.place(), fmt::format("nodes.{}: {}", type, words));
  };
  NodeGroup group;
  group.type = type;
  group.count = read.count;
  group.minimum = read.minimum.value_or(read.count);
  if (group.minimum > group.count) {
    return bad(
        fmt::format(
            "minimum {} is more than count {}", group.minimum, group.count));
  }
  LOCKSTEP_ASSIGN(group.use_spot, parse_use_spot(read.use_spot));
  group.bid = read.bid;
  if (group.bid && group.use_spot == UseSpot::kNo) {
    return bad("a bid needs use_spot: true or auto");
  }
  group.fallback = read.fallback;
  if (std::ranges::count(group.fallback, type) > 0) {
    return bad(fmt::format("fallback names {} itself", type));
  }
  LOCKSTEP_ASSIGN(group.setup, text_or_list(read.setup, "setup"));
  for (const std::string& step : group.setup) {
    // One lower-case word that is no path is meant as a ready-made step.
    if (trim(step).empty()) {
      return bad("an empty set-up step");
    }
  }
  group.image = read.image_id.empty() ? file.image_id : read.image_id;
  group.disk = read.disk ? read.disk : file.cluster.disk;
  return group;
}

Result<void> check_whole(const Cluster& cluster, const config::Place& place) {
  const auto bad = [&](const std::string& words) {
    return config::invalid_at(place, words);
  };
  if (cluster.groups.empty()) {
    return bad("nodes: no type is named; as in nodes: {c5.xlarge: {count: 2}}");
  }
  if (cluster.groups.size() > kMostGroups) {
    return bad(fmt::format("nodes: more than {} types", kMostGroups));
  }
  if (!cluster.subnets.empty() && !cluster.zones.empty()) {
    return bad("zones and subnet exclude each other: a subnet is in one zone");
  }
  if (cluster.tags.size() > kMostTags) {
    return bad(fmt::format("tags: more than {}", kMostTags));
  }
  for (const auto& [key, value] : cluster.tags) {
    if (key.starts_with("lockstep:") || key.starts_with("aws:") ||
        key.empty() || key.size() > 128 || value.size() > 256) {
      return bad(
          fmt::format(
              "tags: '{}': names of up to 128 characters that do not begin "
              "with lockstep: or aws:, values of up to 256",
              key));
    }
  }
  return {};
}

}  // namespace

std::string_view to_string(UseSpot use) {
  switch (use) {
    case UseSpot::kNo:
      return "false";
    case UseSpot::kYes:
      return "true";
    case UseSpot::kAuto:
      return "auto";
  }
  return "false";
}

int Cluster::num_nodes() const {
  int number = 0;
  for (const NodeGroup& group : groups) {
    number += group.count;
  }
  return number;
}

std::vector<Cluster::Wanted> Cluster::wanted() const {
  std::vector<Wanted> all;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string letter =
        i == 0 ? "" : std::string(1, static_cast<char>('a' + i));
    for (int number = 0; number < groups[i].count; ++number) {
      all.push_back({fmt::format("{}-{}{}", name, letter, number), i});
    }
  }
  return all;
}

Result<void> check_cluster_name(const std::string& name) {
  const auto is_good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '-';
  };
  if (name.empty() || name.size() > kLongestName ||
      !std::ranges::all_of(name, is_good) || name.front() == '-' ||
      name.back() == '-' || (name.front() >= '0' && name.front() <= '9')) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}' is no name of a cluster; accepted: letters, digits and "
            "dashes, at most {}, a letter first",
            name,
            kLongestName));
  }
  return {};
}

Result<Cluster> read_cluster(const config::Node& file) {
  LOCKSTEP_ASSIGN(ClusterFile read, config::read<ClusterFile>(file));
  Cluster cluster = read.cluster;
  if (cluster.name.empty()) {
    return config::invalid_at(file.place(), "name: the cluster has none");
  }
  if (!read.nodes.is_null() && read.nodes.kind() != config::Node::Kind::kMap) {
    return config::invalid_at(
        read.nodes.place(), "nodes: a map of types, {c5.xlarge: {count: 2}}");
  }
  std::vector<std::pair<std::string, config::Node>> types;
  flatten("", read.nodes, types);
  for (const auto& [type, node] : types) {
    LOCKSTEP_ASSIGN(NodeGroup group, read_group(type, node, read));
    cluster.groups.push_back(std::move(group));
  }
  LOCKSTEP_ASSIGN(cluster.subnets, text_or_list(read.subnet, "subnet"));
  cluster.tags = cloud::Tags(read.tags.begin(), read.tags.end());
  LOCKSTEP_TRY(check_whole(cluster, file.place()));
  return cluster;
}

Result<Cluster> load_cluster(const std::string& path) {
  LOCKSTEP_ASSIGN(const config::Node node, config::load_yaml(path));
  return read_cluster(node);
}

std::vector<config::FieldDoc> cluster_keys() {
  std::vector<config::FieldDoc> keys = config::describe<ClusterFile>();
  for (config::FieldDoc doc : config::describe<GroupFile>()) {
    doc.key = "nodes.TYPE." + doc.key;
    keys.push_back(std::move(doc));
  }
  return keys;
}

json to_json(const Cluster& c) {
  json groups = json::array();
  for (const NodeGroup& group : c.groups) {
    json one = {
        {"type", group.type},
        {"count", group.count},
        {"minimum", group.minimum},
        {"use_spot", to_string(group.use_spot)},
        {"fallback", group.fallback},
        {"setup", group.setup},
        {"image", group.image}};
    if (group.bid) {
      one["bid"] = group.bid->nanos();
    }
    if (group.disk) {
      one["disk"] = group.disk->count;
    }
    groups.push_back(std::move(one));
  }
  json value = {
      {"name", c.name},
      {"cloud", c.cloud},
      {"region", c.region},
      {"groups", groups},
      {"zones", c.zones},
      {"subnets", c.subnets},
      {"key", c.key},
      {"security_group", c.security_group},
      {"ssh_from", c.ssh_from},
      {"placement_group", c.placement_group},
      {"instance_profile", c.instance_profile},
      {"user", c.user},
      {"tags", c.tags},
      {"idle", c.idle.count()},
      {"lease", c.lease.count()},
      {"ssh_timeout", c.ssh_timeout.count()},
      {"setup_timeout", c.setup_timeout.count()},
      {"price_may_be_unknown", c.price_may_be_unknown},
      {"head_on_demand", c.head_on_demand}};
  if (c.disk) {
    value["disk"] = c.disk->count;
  }
  if (c.budget) {
    value["budget"] = c.budget->nanos();
  }
  if (c.max_duration) {
    value["max_duration"] = c.max_duration->count();
  }
  return value;
}

Result<Cluster> cluster_from_json(const json& value) {
  try {
    Cluster c;
    value.at("name").get_to(c.name);
    value.at("cloud").get_to(c.cloud);
    value.at("region").get_to(c.region);
    for (const json& one : value.at("groups")) {
      NodeGroup group;
      one.at("type").get_to(group.type);
      one.at("count").get_to(group.count);
      one.at("minimum").get_to(group.minimum);
      LOCKSTEP_ASSIGN(
          group.use_spot,
          parse_use_spot(one.at("use_spot").get<std::string>()));
      one.at("fallback").get_to(group.fallback);
      one.at("setup").get_to(group.setup);
      one.at("image").get_to(group.image);
      if (one.contains("bid")) {
        group.bid = Money::from_nanos(one["bid"].get<int64_t>());
      }
      if (one.contains("disk")) {
        group.disk = Bytes{one["disk"].get<uint64_t>()};
      }
      c.groups.push_back(std::move(group));
    }
    value.at("zones").get_to(c.zones);
    value.at("subnets").get_to(c.subnets);
    value.at("key").get_to(c.key);
    value.at("security_group").get_to(c.security_group);
    value.at("ssh_from").get_to(c.ssh_from);
    value.at("placement_group").get_to(c.placement_group);
    value.at("instance_profile").get_to(c.instance_profile);
    value.at("user").get_to(c.user);
    value.at("tags").get_to(c.tags);
    c.idle = Duration(value.at("idle").get<int64_t>());
    c.lease = Duration(value.at("lease").get<int64_t>());
    c.ssh_timeout = Duration(value.at("ssh_timeout").get<int64_t>());
    c.setup_timeout = Duration(value.at("setup_timeout").get<int64_t>());
    value.at("price_may_be_unknown").get_to(c.price_may_be_unknown);
    c.head_on_demand = value.value("head_on_demand", false);
    if (value.contains("disk")) {
      c.disk = Bytes{value["disk"].get<uint64_t>()};
    }
    if (value.contains("budget")) {
      c.budget = Money::from_nanos(value["budget"].get<int64_t>());
    }
    if (value.contains("max_duration")) {
      c.max_duration = Duration(value["max_duration"].get<int64_t>());
    }
    return c;
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("this is no cluster of a journal: {}", error.what()));
  }
}

std::string setup_script(const std::string& step) {
  const auto found = ready_made().find(std::string(trim(step)));
  return found == ready_made().end() ? step : found->second;
}

std::vector<std::string> ready_made_steps() {
  std::vector<std::string> names;
  for (const auto& [name, script] : ready_made()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace lockstep::fleet
