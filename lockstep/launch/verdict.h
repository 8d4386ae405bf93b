#pragma once

// Who ended the run: the first rank that failed by itself. Ranks that fell
// because of it are not named as the cause: those that we stopped, that fell in
// the same moment by an error that a lost peer explains, or that say so in
// their exit event (code 3). Such a one is named only while nobody better is
// known. Order is that of our receipt, never that of the nodes' clocks; ends on
// different nodes that come before settle() count as one moment, since the way
// of one report may be longer than that of the other. Pure.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/hang.h"

namespace lockstep::launch {

struct Failure {
  int rank = -1;      // -1: the node itself
  bool lost = false;  // the node, not the job, failed
  std::string host;
  int pid = 0;
  os::ExitStatus status;
  bool out_of_memory = false;
  std::string reason;        // what the rank or the system said, may be empty
  bool consequence = false;  // it says itself that it lost a peer
  bool certain = false;      // nothing that another node may tell explains it
  bool hang = false;         // it still ran, but took no more steps
  std::vector<std::string> last_lines;

  // "rank 1 failed on node1 (pid 42): out of memory (signal 9)".
  std::string to_string() const;
};

class Verdict {
 public:
  void take(const RankExited& exit, const std::string& host);
  void take(const RankRefused& refused, const std::string& host);
  void take(const NodeLost& lost, const std::string& host);
  void take(const Hang& hang);
  // The failure was told: no other replaces it.
  void settle() { settled_ = true; }
  // A rank's own exit event, before its exit is taken.
  void take(int rank, const wire::Exit& said);
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  std::optional<Failure> failure_;
  int batch_ = 0;
  int weight_ = 0;
  bool settled_ = false;
  std::map<int, wire::Exit> said_;
};

}  // namespace lockstep::launch
