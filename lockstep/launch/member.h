#pragma once

// One node as a hub knows it: who joined, through which connection, its last
// signs of life, and what it takes part in. It sorts what the node reports; it
// sends nothing. Pure, but for a word about clocks in the log.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_protocol.h"
#include "lockstep/launch/clock_offset.h"
#include "lockstep/os/clock.h"

namespace lockstep::launch {

struct Member {
  std::string host;
  std::optional<Join> join;
  uint64_t peer = 0;  // its connection; 0: none
  os::Instant spoke;  // its last message
  os::Instant heard;  // the same, or when its connection closed
  std::string cut;    // why it closed
  bool lost = false;
  bool active = false;               // started and neither idle nor lost
  int generation = -1;               // that it takes part in
  uint64_t reports = 0;              // that came in this session
  std::vector<std::string> waiting;  // words for when it is back

  bool has_other_session(const Join& other) const {
    return join && join->session != other.session;
  }
  // Broken off, or silent for half of its lease, while it has ranks.
  bool is_away(os::Instant now, Duration lease) const {
    return active && (peer == 0 || now - heard > lease / 2);
  }
  // It is connected, for the first time or again. `unix_seconds` are ours.
  void
  connect(uint64_t id, const Join& as, os::Instant now, double unix_seconds);
  void disconnect(const std::string& why, os::Instant now);
  void note_clock(os::Instant there, os::Instant now);
  // Those that are new and not of ranks that were given up, their instants on
  // our clock. kCorrupt when some were left out.
  Result<std::vector<Report>> take(Reports batch, os::Instant now);

 private:
  ClockOffset offset_;
};

}  // namespace lockstep::launch
