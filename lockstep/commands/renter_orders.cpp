// What the renter on a head is told, as the client writes it.

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/commands/renter.h"
#include "lockstep/fetch/aws_profile.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;

// How the cloud is found from there, and no keys: the head's role has its own.
Result<json> environment_there(const std::string& region) {
  LOCKSTEP_ASSIGN(const fetch::AwsSettings settings, fetch::load_settings());
  json environment = {{"AWS_REGION", region}};
  if (settings.custom_endpoint("ec2")) {
    environment["AWS_ENDPOINT_URL_EC2"] = settings.endpoint("ec2", region);
  }
  if (!settings.ca_file().empty()) {
    environment["AWS_CA_BUNDLE"] = settings.ca_file().string();
  }
  for (const char* name :
       {"LOCKSTEP_SPOT_WAIT", "LOCKSTEP_FLEET_PAUSE", "LOCKSTEP_FAR_HOME"}) {
    if (const char* value = std::getenv(name)) {
      environment[name] = value;
    }
  }
  return environment;
}

}  // namespace

Duration away_time() {
  constexpr Duration kAway = std::chrono::seconds(30);
  const char* told = std::getenv("LOCKSTEP_AWAY");
  return told == nullptr ? kAway : parse_duration(told).value_or(kAway);
}

std::string why_not_on_head(
    const fleet::Cluster& cluster,
    const std::string& launcher) {
  if (cluster.instance_profile.empty()) {
    return "resources.instance_profile would let the head do it (docs/aws.md)";
  }
  if (!cluster.key.empty()) {
    return "resources.key is your own and does not go to the head";
  }
  return launcher == "ssh"
             ? ""
             : "with launcher " + launcher + " the head is this machine";
}

Result<std::string> renter_orders(const RentingTerms& terms) {
  LOCKSTEP_ASSIGN(
      const json environment, environment_there(terms.cluster.region));
  LOCKSTEP_ASSIGN(
      const std::string secret, os::real_files().read(terms.key.file));
  json nodes = json::array();
  for (const fleet::Node& node : terms.nodes) {
    nodes.push_back(
        {{"name", node.name},
         {"id", node.instance.id},
         {"type", node.instance.type},
         {"zone", node.instance.zone},
         {"launched", node.instance.launched},
         {"hourly", node.hourly.nanos()}});
  }
  return json{
      {"cluster", fleet::to_json(terms.cluster)},
      {"plan", fleet::to_json(terms.plan)},
      {"nodes", std::move(nodes)},
      {"since", terms.since},
      {"private_key", secret},
      {"public_key", terms.key.public_line},
      {"environment", environment},
      {"away_ms", away_time() / std::chrono::milliseconds(1)},
      {"mounts", json::array()}}
      .dump();
}

std::string with_mounts(
    const std::string& orders,
    const std::vector<PlacedMount>& mounts) {
  json all = json::parse(orders, nullptr, false);
  if (!all.is_object()) {
    return orders;
  }
  for (const PlacedMount& mount : mounts) {
    all["mounts"].push_back(
        {{"name", mount.name}, {"target", mount.target.string()}});
  }
  return all.dump();
}

}  // namespace lockstep::commands
