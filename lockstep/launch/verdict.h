#pragma once

// Who ended the run: the first rank that failed by itself. Ranks that fell
// because of it are not named as the cause: those that we stopped, that fell in
// the same moment by an error that a lost peer explains, or that say so in
// their exit event (code 3). Such a one is named only while nobody better is
// known.
//
// Order is that of the ends, as keepers saw them, on the head's monotonic clock
// (clock_offset.h), whatever the order of their reports. A rank that said
// something new just before it went counts from then: an interpreter tears its
// connections well before it is gone, so those that miss it may go first. A
// keeper knows the order of its own ranks; between keepers, ends less than a
// tenth of a second apart are one moment, in which the likelier cause is named:
// out of memory, a node that was lost, a crash or a kill, then a plain exit
// code, and last one whose words or signal speak of a lost peer. Equal ones go
// by time. Until settle() a report that comes late may change the verdict.
// Pure.

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
  std::string host{};
  int pid = 0;
  os::ExitStatus status{};
  bool out_of_memory = false;
  std::string reason{};      // what the rank or the system said, may be empty
  bool consequence = false;  // it says itself that it lost a peer
  bool blames_peer = false;  // its last lines speak of a torn connection
  bool certain = false;      // nothing that another node may tell explains it
  bool hang = false;         // it still ran, but took no more steps
  std::vector<std::string> last_lines{};

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
  struct Candidate {
    Failure failure;
    os::Instant at;     // of its last words, or its end
    os::Instant ended;  // for words of the same time
    int keeper = 0;
    int batch = 0;
    int weight = 0;
  };
  static bool is_before(const Candidate& one, const Candidate& other);
  static bool is_one_moment(const Candidate& first, const Candidate& other);
  void add(Candidate candidate);

  std::vector<Candidate> candidates_;  // as they came
  std::optional<Failure> failure_;     // the best of them
  bool settled_ = false;
  std::map<int, wire::Exit> said_;
};

}  // namespace lockstep::launch
