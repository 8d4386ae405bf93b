#pragma once

// Who ended the run: the first rank that failed by itself. Ranks that fell
// because of it (stopped by us, or in the same moment by an error that a lost
// peer explains) are not named as the cause. Pure.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent.h"

namespace lockstep::launch {

struct Failure {
  int rank = -1;      // -1: the node itself
  bool lost = false;  // the node, not the job, failed
  std::string host;
  int pid = 0;
  os::ExitStatus status;
  bool out_of_memory = false;
  std::string reason;  // what the rank or the system said, may be empty
  std::vector<std::string> last_lines;

  // "rank 1 failed on node1 (pid 42): out of memory (signal 9)".
  std::string to_string() const;
};

class Verdict {
 public:
  void take(const RankExited& exit, const std::string& host);
  void take(const RankRefused& refused, const std::string& host);
  void take(const NodeLost& lost, const std::string& host);
  // What a rank's own exit event said, before its exit is taken.
  void say_reason(int rank, const std::string& reason);
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  std::optional<Failure> failure_;
  int batch_ = 0;
  int weight_ = 0;
  std::map<int, std::string> reasons_;
};

}  // namespace lockstep::launch
