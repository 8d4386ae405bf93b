#pragma once

// Words between a head and its agents or shims, over wire::Channel: CBOR maps
// with a "type". Every reader is tolerant of unknown keys and refuses what it
// cannot use with kCorrupt; none trusts a size or a number. Fuzzed.
//
//   agent -> head   join   version, node, host, cores, gpus, interface,
//                          head_address (that it dialled), logs (offsets by
//                          rank)
//                   beat   time                    every second
//                   report the words of agent.h    (events in batches)
//                   bytes  rank, offset, data      of a rank's log
//                   rest   rank, size              the log is complete to there
//   head -> agent   welcome  lease, generation     or refuse reason
//                   beat     time
//                   start    StartRequest
//                   end      signal, grace
//                   inspect  rank
//                   bye                            nothing more will come

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

inline constexpr int kAgentProtocol = 1;
inline constexpr std::string_view kAgentPurpose = "agent";
inline constexpr Duration kBeat = std::chrono::seconds(1);
inline constexpr Duration kLease = std::chrono::seconds(5);
inline constexpr Duration kRejoin = std::chrono::minutes(10);

struct Join {
  int version = kAgentProtocol;
  int node = 0;  // index in the plan; for a shim: its rank
  std::string host;
  int cores = 1;
  int gpus = 0;
  std::string interface;     // that reaches the head
  std::string own_address;   // of that interface
  std::string head_address;  // that it dialled
};
struct Beat {
  double time = 0;  // Unix seconds, for the clock skew
};
struct LogBytes {
  int rank = 0;
  uint64_t offset = 0;
  std::string data;
};
struct LogRest {  // nothing of this generation's log will follow
  int rank = 0;
  uint64_t size = 0;
};
using AgentMessage =
    std::variant<Join, Beat, std::vector<Report>, LogBytes, LogRest>;

struct Welcome {
  Duration lease{};
  int generation = 0;
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
