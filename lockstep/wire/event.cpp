#include "lockstep/wire/event.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace lockstep::wire {
namespace {

// For reading: an ordered object copies its members when it grows, and a copy
// calls itself for each level that a stranger nested.
using Json = nlohmann::json;

constexpr size_t kMaxLine = 1 << 20;

// One list of fields for each kind serves writing and reading: `field` is
// called with a name and the member.
template <class Body, class Field>
void each_field(Body& body, const Field& field) {
  using Plain = std::remove_const_t<Body>;
  if constexpr (std::is_same_v<Plain, Init>) {
    field("program", body.program);
    field("world_size", body.world_size);
    field("seconds", body.seconds);
    field("facts", body.facts);
  } else if constexpr (std::is_same_v<Plain, Phase>) {
    field("name", body.name);
  } else if constexpr (std::is_same_v<Plain, Iteration>) {
    field("step", body.step);
    field("epoch", body.epoch);
    field("samples", body.samples);
    field("data", body.data);
    field("compute", body.compute);
    field("communication", body.communication);
    field("wait", body.wait);
    field("total", body.total);
  } else if constexpr (std::is_same_v<Plain, Metric>) {
    field("step", body.step);
    field("epoch", body.epoch);
    field("values", body.values);
  } else if constexpr (std::is_same_v<Plain, Epoch>) {
    field("epoch", body.epoch);
    field("steps", body.steps);
    field("samples", body.samples);
    field("seconds", body.seconds);
  } else if constexpr (std::is_same_v<Plain, Checkpoint>) {
    field("step", body.step);
    field("path", body.path);
    field("reason", body.reason);
    field("seconds", body.seconds);
  } else if constexpr (std::is_same_v<Plain, Resource>) {
    field("resident_bytes", body.resident_bytes);
    field("cpu", body.cpu);
    field("gpu_use", body.gpu_use);
    field("gpu_memory_bytes", body.gpu_memory_bytes);
  } else if constexpr (std::is_same_v<Plain, Exit>) {
    field("code", body.code);
    field("signal", body.signal);
    field("reason", body.reason);
  } else if constexpr (std::is_same_v<Plain, Node>) {
    field("state", body.state);
    field("detail", body.detail);
  } else if constexpr (std::is_same_v<Plain, Cost>) {
    field("dollars", body.dollars);
    field("dollars_per_hour", body.dollars_per_hour);
  } else {
    static_assert(std::is_same_v<Plain, Decision>);
    field("action", body.action);
    field("reason", body.reason);
  }
}

constexpr std::array<std::string_view, std::variant_size_v<EventBody>> kKinds =
    {"init",
     "phase",
     "iteration",
     "metric",
     "epoch",
     "checkpoint",
     "resource",
     "exit",
     "node",
     "cost",
     "decision"};

// An empty body of the kind with this name; false when there is none.
template <size_t index = 0>
bool make_body(std::string_view kind, EventBody& body) {
  if constexpr (index == kKinds.size()) {
    return false;
  } else {
    if (kKinds[index] == kind) {
      body.emplace<index>();
      return true;
    }
    return make_body<index + 1>(kind, body);
  }
}

Error corrupt(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "bad event: " + what);
}

// What was found, for messages; long strings are cut. Nested values are not
// written out: dump() calls itself for each level.
std::string shown(const Json& json) {
  const auto nests = [](const Json& item) { return item.is_structured(); };
  if (std::any_of(json.begin(), json.end(), nests)) {
    return json.is_array() ? "[...]" : "{...}";
  }
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 40) + "..." : text;
}

bool read_value(const Json& json, std::string& value) {
  if (!json.is_string()) {
    return false;
  }
  value = json.get_ref<const std::string&>();
  return true;
}

bool read_value(const Json& json, double& value) {
  if (json.is_null()) {
    value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (!json.is_number()) {
    return false;
  }
  value = json.get<double>();
  return true;
}

template <class Integer>
  requires std::is_integral_v<Integer>
bool read_value(const Json& json, Integer& value) {
  if (json.is_number_unsigned()) {
    auto number = json.get<uint64_t>();
    value = static_cast<Integer>(number);
    return std::in_range<Integer>(number);
  }
  if (json.is_number_integer()) {
    auto number = json.get<int64_t>();
    value = static_cast<Integer>(number);
    return std::in_range<Integer>(number);
  }
  return false;
}

template <class T>
bool read_value(const Json& json, std::map<std::string, T>& value) {
  if (!json.is_object()) {
    return false;
  }
  for (const auto& [key, item] : json.items()) {
    if (!read_value(item, value[key])) {
      return false;
    }
  }
  return true;
}

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, std::string>) {
    return "a string";
  } else if constexpr (std::is_same_v<T, double>) {
    return "a number";
  } else if constexpr (std::is_integral_v<T>) {
    return "a whole number in range";
  } else if constexpr (std::is_same_v<T, std::map<std::string, double>>) {
    return "an object of numbers";
  } else {
    return "an object of strings";
  }
}

// Absent keeps the default; of the wrong type becomes the first problem.
struct Reader {
  const Json* json;
  std::string* problem;
  template <class T>
  void operator()(const char* name, T& value) const {
    auto found = json->find(name);
    if (found == json->end() || !problem->empty()) {
      return;
    }
    if (!read_value(*found, value)) {
      *problem = fmt::format(
          "'{}' must be {}, found {}", name, type_name<T>(), shown(*found));
    }
  }
};

std::string joined_kinds() {
  return fmt::format("{}", fmt::join(kKinds, ", "));
}

}  // namespace

std::string_view kind(const EventBody& body) {
  return kKinds[body.index()];
}

bool may_drop(const EventBody& body) {
  return std::holds_alternative<Iteration>(body) ||
         std::holds_alternative<Resource>(body);
}

std::string to_json(const Event& event) {
  nlohmann::ordered_json json;
  json["v"] = kEventVersion;
  json["kind"] = kind(event.body);
  json["time"] = event.time;
  json["rank"] = event.rank;
  json["node"] = event.node;
  std::visit(
      [&](const auto& body) {
        each_field(body, [&](const char* name, const auto& value) {
          json[name] = value;
        });
      },
      event.body);
  // Shortest digits that read back exactly; NaN and infinity become null. A
  // path need not be UTF-8, a line of JSON must be.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Event> parse_event(std::string_view line) {
  if (line.size() > kMaxLine) {
    return corrupt(
        fmt::format(
            "a line of {} bytes, at most {} are read", line.size(), kMaxLine));
  }
  Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    return corrupt("not JSON");
  }
  if (!json.is_object()) {
    return corrupt("not a JSON object");
  }
  Event event;
  std::string problem;
  int version = 0;
  std::string name;
  Reader reader{.json = &json, .problem = &problem};
  reader("v", version);
  if (problem.empty() && version > kEventVersion) {
    return corrupt(
        fmt::format(
            "version {} is newer than {}, the one this program reads",
            version,
            kEventVersion));
  }
  if (problem.empty() && version < 1) {
    return corrupt("no version 'v'");
  }
  reader("kind", name);
  if (problem.empty() && !make_body(name, event.body)) {
    return corrupt(
        fmt::format(
            "unknown kind {}; accepted: {}",
            shown(Json(name)),
            joined_kinds()));
  }
  reader("time", event.time);
  reader("rank", event.rank);
  reader("node", event.node);
  std::visit([&](auto& body) { each_field(body, reader); }, event.body);
  if (!problem.empty()) {
    return corrupt(problem);
  }
  return event;
}

}  // namespace lockstep::wire
