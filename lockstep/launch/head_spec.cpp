#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/id.h"
#include "lockstep/launch/head.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

json encode_node(const HeadNode& node) {
  return {
      {"host", node.host},
      {"procs", node.procs},
      {"workdir", node.workdir.string()},
      {"trainer", node.trainer.string()},
      {"folder", node.folder.string()},
      {"environment", node.environment},
      {"envs", node.envs},
      {"program", node.program.string()},
      {"spot", node.spot}};
}

HeadNode decode_node(const json& object) {
  HeadNode node;
  node.host = object.at("host").get<std::string>();
  node.procs = object.at("procs").get<int>();
  node.workdir = object.value("workdir", "");
  node.trainer = object.value("trainer", "");
  node.folder = object.value("folder", "");
  node.environment = object.value("environment", Environment());
  node.envs = object.value("envs", Environment());
  node.program = object.value("program", "");
  node.spot = object.value("spot", false);
  return node;
}

HeadSpec decode(const json& object) {
  HeadSpec spec;
  spec.launcher = object.at("launcher").get<std::string>();
  spec.run_id = object.at("run_id").get<std::string>();
  spec.name = object.value("name", "");
  spec.runs_dir = object.at("runs_dir").get<std::string>();
  spec.job = object.at("job").get<std::string>();
  spec.secrets = object.value("secrets", Environment());
  spec.key = object.at("key").get<std::string>();
  for (const json& node : object.at("nodes")) {
    spec.nodes.push_back(decode_node(node));
  }
  spec.command = object.value("command", "");
  spec.program = object.value("program", "");
  spec.retries = object.value("retries", 0);
  if (const auto found = object.find("timeout");
      found != object.end() && !found->is_null()) {
    spec.timeout = Duration(found->get<int64_t>());
  }
  if (const auto found = object.find("price_per_hour");
      found != object.end() && !found->is_null()) {
    spec.price_per_hour = Money::from_nanos(found->get<int64_t>());
  }
  spec.price_source = object.value("price_source", "");
  spec.before = Duration(object.value("before", int64_t{0}));
  spec.terms.reserve = Duration(object.value("reserve", int64_t{0}));
  if (const auto found = object.find("life");
      found != object.end() && !found->is_null()) {
    spec.terms.life = Duration(found->get<int64_t>());
  }
  spec.terms.gigabyte = Money::from_nanos(object.value("gigabyte", int64_t{0}));
  spec.replacement = Duration(object.value("replacement", int64_t{0}));
  spec.uploader = object.value("uploader", "");
  spec.outputs = object.value("outputs", "");
  spec.renter = object.value("renter", "");
  spec.first_port = object.value("first_port", 0);
  spec.last_port = object.value("last_port", 0);
  spec.patience = Duration(object.value("patience", spec.patience.count()));
  return spec;
}

Result<void> check(const HeadSpec& spec) {
  const auto refuse = [](const std::string& what) {
    return Error(ErrorCode::kCorrupt, "the head's orders: " + what);
  };
  Key key{};
  if (spec.run_id.empty() || spec.run_id.find('/') != std::string::npos ||
      spec.run_id.starts_with('.')) {
    return refuse(fmt::format("'{}' is no run id", spec.run_id));
  }
  if (!from_hex(spec.key, key)) {
    return refuse("the key is not 64 hexadecimal digits");
  }
  if (spec.nodes.empty()) {
    return refuse("no node is named");
  }
  for (const HeadNode& node : spec.nodes) {
    if (node.procs < 1) {
      return refuse(fmt::format("{} has {} ranks", node.host, node.procs));
    }
  }
  if (spec.first_port < 0 || spec.last_port > 65535 ||
      spec.last_port < spec.first_port) {
    return refuse(
        fmt::format(
            "{}-{} is no range of ports", spec.first_port, spec.last_port));
  }
  return {};
}

}  // namespace

std::string to_json(const HeadSpec& spec) {
  json nodes = json::array();
  for (const HeadNode& node : spec.nodes) {
    nodes.push_back(encode_node(node));
  }
  json object = {
      {"launcher", spec.launcher},
      {"run_id", spec.run_id},
      {"name", spec.name},
      {"runs_dir", spec.runs_dir.string()},
      {"job", spec.job},
      {"secrets", spec.secrets},
      {"key", spec.key},
      {"nodes", std::move(nodes)},
      {"command", spec.command},
      {"program", spec.program},
      {"retries", spec.retries},
      {"price_source", spec.price_source},
      {"replacement", spec.replacement.count()},
      {"uploader", spec.uploader},
      {"outputs", spec.outputs},
      {"renter", spec.renter},
      {"first_port", spec.first_port},
      {"last_port", spec.last_port},
      {"patience", spec.patience.count()}};
  object["before"] = spec.before.count();
  object["reserve"] = spec.terms.reserve.count();
  object["gigabyte"] = spec.terms.gigabyte.nanos();
  if (spec.terms.life) {
    object["life"] = spec.terms.life->count();
  }
  if (spec.timeout) {
    object["timeout"] = spec.timeout->count();
  }
  if (spec.price_per_hour) {
    object["price_per_hour"] = spec.price_per_hour->nanos();
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string complete_renter_orders(
    const HeadSpec& spec,
    const std::string& setup,
    const std::vector<std::string>& addresses) {
  json orders = json::parse(spec.renter, nullptr, false);
  if (!orders.is_object()) {
    return "";
  }
  json nodes = json::array();
  for (const HeadNode& node : spec.nodes) {
    nodes.push_back(
        {{"host", node.host},
         {"workdir", node.workdir.string()},
         {"trainer", node.trainer.string()},
         {"folder", node.folder.string()},
         {"spot", node.spot}});
  }
  orders["run"] = {
      {"key", spec.key},
      {"setup", setup},
      {"nodes", std::move(nodes)},
      {"addresses", addresses}};
  return orders.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<HeadSpec> parse_head_spec(const std::string& text) {
  HeadSpec spec;
  try {
    spec = decode(json::parse(text));
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("the head's orders: {}", error.what()));
  }
  LOCKSTEP_TRY(check(spec));
  return spec;
}

}  // namespace lockstep::launch
