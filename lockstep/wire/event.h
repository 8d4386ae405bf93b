#pragma once

// The event stream's vocabulary: what a rank (or the control side) says about
// a run, one JSON object a line. docs/events.md is the schema; kVersion grows
// when a reader of the old one would be misled. Pure values.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "lockstep/base/result.h"

namespace lockstep::wire {

inline constexpr int kEventVersion = 1;

struct Init {
  std::string program;  // "lockstep-train dcgan"
  int world_size = 1;
  double seconds = 0;  // from the start of the process to ready
  std::map<std::string, std::string> facts;  // device, precision, collective
};
struct Phase {
  std::string name;  // "train", "validation", "warm-up"
};
// The four parts sum to total.
struct Iteration {
  int64_t step = 0;   // from 1, over the whole run
  int64_t epoch = 0;  // from 0
  int64_t samples = 0;
  double data = 0, compute = 0, communication = 0, wait = 0, total = 0;
};
struct Metric {
  int64_t step = 0;
  int64_t epoch = 0;
  std::map<std::string, double> values;  // finite; NaN is written as null
};
struct Epoch {
  int64_t epoch = 0;
  int64_t steps = 0;
  int64_t samples = 0;
  double seconds = 0;
};
struct Checkpoint {
  int64_t step = 0;
  std::string path;
  std::string reason;  // "periodic", "best", "final", "signal", "rehearsal"
  double seconds = 0;
};
struct Resource {
  double resident_bytes = 0, cpu = 0;  // cpu: cores in use
  double gpu_use = 0, gpu_memory_bytes = 0;
};
struct Exit {
  int code = 0;
  int signal = 0;
  std::string reason;  // empty when all is well
};
// From the control side.
struct Node {
  std::string state;  // "up", "lost", "gone"
  std::string detail;
};
struct Cost {
  double dollars = 0;
  double dollars_per_hour = 0;
};
struct Decision {
  std::string action;
  std::string reason;
};

using EventBody = std::variant<
    Init,
    Phase,
    Iteration,
    Metric,
    Epoch,
    Checkpoint,
    Resource,
    Exit,
    Node,
    Cost,
    Decision>;

struct Event {
  double time = 0;  // Unix seconds
  int rank = -1;    // -1: the control side
  std::string node;
  EventBody body;
};

std::string_view kind(const EventBody& body);
// True for kinds that may be dropped when the disk stalls.
bool may_drop(const EventBody& body);

// One line, without the newline.
std::string to_json(const Event& event);
// Tolerant: unknown fields are ignored, absent ones keep their default; an
// unknown kind or newer version is an error that says so; so is a line that is
// not JSON. Never throws, whatever the bytes.
Result<Event> parse_event(std::string_view line);

}  // namespace lockstep::wire
