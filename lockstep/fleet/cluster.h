#pragma once

// What a user wants to have: a cluster file, or what `run` makes of a job's
// resources. Node groups by type with a count; all else is of the whole
// cluster. Reading checks everything that can be checked without a cloud;
// errors have file:line and the accepted values. A plain value; as JSON it
// stands in the journal, so that a later command knows what was wanted.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/cloud/machine.h"
#include "lockstep/config/binder.h"

namespace lockstep::fleet {

enum class UseSpot { kNo, kYes, kAuto };  // auto: on demand when there is none
std::string_view to_string(UseSpot use);  // "false", "true", "auto"

struct NodeGroup {
  std::string type;  // its name in the file; the first choice
  int count = 1;
  int minimum = 1;  // fewer than this is a failure; absent: count
  UseSpot use_spot = UseSpot::kNo;
  std::optional<Money> bid;           // an hour; spot only
  std::vector<std::string> fallback;  // further types, when this one is short
  std::vector<std::string> setup;     // steps; "docker" is ready-made
  std::string image;                  // empty: a current one for the type
  std::optional<Bytes> disk;          // none: the cluster's
};

struct Cluster {
  std::string name;
  std::string cloud = "aws";
  std::string region;
  std::vector<NodeGroup> groups;
  std::vector<std::string> zones;     // in order of preference; empty: any
  std::vector<std::string> subnets;   // likewise; empty: the default network
  std::string key;                    // a private key file; empty: one is made
  std::string security_group;         // one that is there; empty: one is made
  std::vector<std::string> ssh_from;  // ranges; empty: the user's own address
  std::string placement_group;
  std::string instance_profile;
  std::string user;  // who logs in; empty: the image's
  std::optional<Bytes> disk;
  cloud::Tags tags;
  Duration idle = std::chrono::minutes(10);
  Duration lease = {};  // the first, from boot; 0: as idle
  Duration ssh_timeout = std::chrono::minutes(5);
  Duration setup_timeout = std::chrono::minutes(30);
  std::optional<Money> budget;
  std::optional<Duration> max_duration;
  bool price_may_be_unknown = false;
  // The first node is never spot: what is lost with it is the run.
  bool head_on_demand = false;

  Duration first_lease() const { return lease > Duration(0) ? lease : idle; }
  int num_nodes() const;
  // Every node that is wanted, group by group: "blue-0", "blue-1" of the first
  // group, "blue-b0" of the second. Names do not move when a group grows.
  struct Wanted {
    std::string node;
    size_t group = 0;
  };
  std::vector<Wanted> wanted() const;
};

// The words of a cluster file; types with dots may be quoted or not.
Result<Cluster> read_cluster(const config::Node& file);
Result<Cluster> load_cluster(const std::string& path);
std::vector<config::FieldDoc> cluster_keys();  // for the help

nlohmann::json to_json(const Cluster& cluster);
Result<Cluster> cluster_from_json(const nlohmann::json& value);

// Letters, digits and dashes, at most 40, a letter first: it becomes part of
// names in the cloud and of a folder.
Result<void> check_cluster_name(const std::string& name);

// The shell text of a step: a ready-made one by its name, else itself.
std::string setup_script(const std::string& step);
std::vector<std::string> ready_made_steps();

}  // namespace lockstep::fleet
