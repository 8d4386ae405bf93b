#pragma once

// The node's side of log_store.h: reads what ranks of a generation printed and
// sends it with offsets, in turns, only while the socket takes it. One thread.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/launch/agent_protocol.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {

class LogSender {
 public:
  // Before the ranks start: their output begins where the files end now.
  void begin(const StartRequest& request);
  // No rank writes any more: says where each log ends.
  void finish(wire::Channel* channel);
  // A connection is there again; the head has these bytes.
  void resume(wire::Channel& channel, const std::map<int, uint64_t>& came);
  // Sends what there is room for; true when more is waiting.
  bool send(wire::Channel& channel);
  // Everything up to the end that finish() found was handed to a channel.
  bool done() const;
  void forget() { logs_.clear(); }

 private:
  struct Log {
    os::Path path;
    os::Descriptor file;
    uint64_t start = 0;
    uint64_t sent = 0;
    std::optional<uint64_t> size;
  };
  void announce(wire::Channel& channel) const;
  std::map<int, Log> logs_;  // by rank
  int generation_ = 0;
  std::string block_;
};

}  // namespace lockstep::launch
