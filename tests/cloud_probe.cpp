// What tests/test_cloud.py and tests/test_lease.py drive: one call of the EC2
// provider, its order as JSON on standard input, its answer as JSON.
//
//   cloud_probe user-data|renew|offers|image|key-pair|security-group|launch|
//               instances|terminate|remove|set-tags

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/fallback.h"
#include "lockstep/cloud/user_data.h"

namespace {

using namespace lockstep;
using namespace lockstep::cloud;
using nlohmann::json;

std::string text(const json& order, const char* key) {
  return order.value(key, std::string());
}

Tags tags(const json& order) {
  return order.value("tags", Tags());
}

std::vector<std::string> texts(const json& order, const char* key) {
  return order.value(key, std::vector<std::string>());
}

json shown(const std::vector<Instance>& instances) {
  json all = json::array();
  for (const Instance& one : instances) {
    all.push_back(
        {{"id", one.id},
         {"type", one.type},
         {"zone", one.zone},
         {"state", to_string(one.state)},
         {"market", to_string(one.market)},
         {"address", one.private_address},
         {"tags", one.tags}});
  }
  return all;
}

Result<json> user_data(const json& order) {
  UserDataOptions options;
  options.lease = from_seconds(order.value("lease", 1800.0));
  options.longest = from_seconds(order.value("longest", 86400.0));
  options.period = from_seconds(order.value("period", 5.0));
  options.authorized_key = text(order, "key");
  LOCKSTEP_ASSIGN(const std::string script, make_user_data(options));
  return json(script);
}

LaunchOrder launch_order(const json& order) {
  LaunchOrder one;
  one.token = text(order, "token");
  one.type = text(order, "type");
  one.count = order.value("count", 1);
  one.market = order.value("spot", false) ? Market::kSpot : Market::kOnDemand;
  one.image = text(order, "image");
  one.key_pair = text(order, "key_pair");
  one.security_groups = texts(order, "security_groups");
  one.subnet = text(order, "subnet");
  one.user_data = text(order, "user_data");
  one.root_device = text(order, "root_device");
  if (order.contains("disk")) {
    one.disk = Bytes{order["disk"].get<uint64_t>() << 30};
  }
  one.tags = tags(order);
  return one;
}

ResourceKind kind_of(const std::string& name) {
  for (const ResourceKind kind : kResourceKinds) {
    if (to_string(kind) == name) {
      return kind;
    }
  }
  return ResourceKind::kInstance;
}

Result<json> serve(ec2::Ec2& ec2, const std::string& verb, const json& order) {
  if (verb == "offers") {
    LOCKSTEP_ASSIGN(const auto offers, ec2.offers(texts(order, "types")));
    json all = json::array();
    for (const Offer& one : offers) {
      all.push_back(
          {{"type", one.type},
           {"cpus", one.cpus},
           {"memory", one.memory.count},
           {"architecture", one.architecture},
           {"zones", one.zones},
           {"spot", one.spot}});
    }
    return all;
  }
  if (verb == "image") {
    ImageWish wish;
    wish.id = text(order, "id");
    wish.architecture = text(order, "architecture");
    LOCKSTEP_ASSIGN(const Image image, ec2.image(wish));
    return json(
        {{"id", image.id},
         {"name", image.name},
         {"root_device", image.root_device},
         {"user", image.user}});
  }
  if (verb == "key-pair") {
    LOCKSTEP_ASSIGN(
        const std::string name,
        ec2.key_pair({text(order, "name"), text(order, "key"), tags(order)}));
    return json(name);
  }
  if (verb == "security-group") {
    SecurityGroupOrder group;
    group.existing = text(order, "existing");
    group.name = text(order, "name");
    group.subnet = text(order, "subnet");
    group.ssh_from = texts(order, "ssh_from");
    group.tags = tags(order);
    LOCKSTEP_ASSIGN(const std::string id, ec2.security_group(group));
    return json(id);
  }
  if (verb == "launch") {
    const LaunchOrder one = launch_order(order);
    const LaunchPlace place = {
        one.type, text(order, "zone"), "", one.market, ""};
    LOCKSTEP_ASSIGN(
        const Launched launched, launch_anywhere(ec2, one, {place}, {}));
    return shown(launched.instances);
  }
  if (verb == "instances") {
    LOCKSTEP_ASSIGN(
        const auto found, ec2.instances({tags(order), texts(order, "ids")}));
    return shown(found);
  }
  if (verb == "terminate") {
    LOCKSTEP_TRY(ec2.terminate(texts(order, "ids")));
    return json();
  }
  if (verb == "remove") {
    LOCKSTEP_TRY(ec2.remove(kind_of(text(order, "kind")), text(order, "id")));
    return json();
  }
  if (verb == "set-tags") {
    LOCKSTEP_TRY(ec2.set_tags(texts(order, "ids"), tags(order)));
    return json();
  }
  return Error(ErrorCode::kInvalidInput, "no verb " + verb);
}

Result<json> run(const std::string& verb) {
  const json order = json::parse(std::cin);
  if (verb == "user-data") {
    return user_data(order);
  }
  if (verb == "renew") {
    LOCKSTEP_TRY(
        renew_lease(text(order, "folder"), order["until"].get<double>()));
    return json();
  }
  fetch::AwsClientOptions options;
  LOCKSTEP_ASSIGN(options.settings, fetch::load_settings());
  fetch::AwsClient client(std::move(options));
  ec2::Ec2 ec2({.client = &client, .region = "", .page = 5});
  return serve(ec2, verb, order);
}

}  // namespace

int main(int argc, char** argv) {
  const auto answer = run(argc > 1 ? argv[1] : "");
  if (!answer) {
    const auto failure = failure_of(answer.error());
    fmt::print(
        "{}\n",
        json({{"error", answer.error().to_string()},
              {"class", failure ? to_string(*failure) : ""}})
            .dump());
    return 1;
  }
  fmt::print("{}\n", json({{"answer", *answer}}).dump());
  return 0;
}
