#pragma once

// Words between a head and its agents or shims, over wire::Channel: CBOR maps
// with a "type". Every reader is tolerant of unknown keys and refuses what it
// cannot use with kCorrupt; none trusts a size or a number. Fuzzed.
//
//   agent -> head   join     who it is
//                   beat     time, clock             every second
//                   reports  the words of agent.h, numbered; kept by the agent
//                            until the head said that it heard them
//                   bytes    rank, offset, data      of a rank's log
//                   rest     rank, size              where the log ends
//   head -> agent   welcome  lease, generation, what it has heard; or refuse
//                   beat     time, heard
//                   start    StartRequest
//                   end      signal, grace
//                   inspect  rank
//                   bye                              nothing more will come
//
// Offsets count from where a generation's output begins. Reports and bytes
// carry the generation they belong to: what is late is left out. Instants are
// on the sender's monotonic clock; `clock` is that clock when a message was
// sent, by which the receiver compares (clock_offset.h).

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

inline constexpr int kAgentProtocol = 2;
inline constexpr std::string_view kAgentPurpose = "agent";
inline constexpr Duration kBeat = std::chrono::seconds(1);
inline constexpr Duration kLease = std::chrono::seconds(5);
inline constexpr Duration kRejoin = std::chrono::minutes(10);

struct Join {
  int version = kAgentProtocol;
  int node = 0;         // index in the plan; for a shim: its rank
  std::string session;  // of this process: another one starts from nothing
  std::string host;
  int cores = 1;
  int gpus = 0;
  std::string interface;     // that reaches the head
  std::string own_address;   // of that interface
  std::string head_address;  // that it dialled
  double time = 0;           // Unix seconds there
};
struct Beat {
  double time = 0;     // Unix seconds, for the clock skew
  uint64_t heard = 0;  // by the head: how many reports came
  os::Instant clock{};
};
struct Reports {
  int generation = 0;
  uint64_t first = 0;  // the number of the first, from 0 in a session
  std::vector<Report> reports;
  os::Instant clock{};
};
struct LogBytes {
  int generation = 0;
  int rank = 0;
  uint64_t offset = 0;
  std::string data;
};
struct LogRest {  // this generation's log ends there; bytes may still follow
  int generation = 0;
  int rank = 0;
  uint64_t size = 0;
};
using AgentMessage = std::variant<Join, Beat, Reports, LogBytes, LogRest>;

struct Welcome {
  Duration lease{};
  // That this node takes part in, as the head sees it; -1: none. An agent
  // whose ranks are of another one ends them.
  int generation = -1;
  uint64_t heard = 0;
  std::map<int, uint64_t> logs;  // of that generation, bytes that came, by rank
};
struct Refuse {
  std::string reason;
};
struct EndRanks {
  int signal = 15;
  Duration grace{};
};
struct Inspect {
  int rank = 0;
};
struct Bye {};
using HeadMessage =
    std::variant<Welcome, Refuse, Beat, StartRequest, EndRanks, Inspect, Bye>;

std::string encode(const AgentMessage& message);
std::string encode(const HeadMessage& message);
Result<AgentMessage> decode_agent_message(std::string_view bytes);
Result<HeadMessage> decode_head_message(std::string_view bytes);

}  // namespace lockstep::launch
