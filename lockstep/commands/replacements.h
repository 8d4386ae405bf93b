#pragma once

// Machines in place of those that the cloud took away, while a run goes on: a
// thread follows the run's events, as they come to this machine, and for each
// spot node that leaves or was lost has another one rented and joined. What
// fails is told and tried again. The destructor stops it and waits. Begun late,
// it does what is still to be done: events are read from the first one on.

#include <functional>
#include <set>
#include <string>
#include <thread>

#include "lockstep/base/result.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {

// Why a node has to be replaced, as the run's events say.
struct Absence {
  bool is_leaving = false;  // its machine may be ended
  double since = 0;         // Unix seconds
};

struct ReplacementSteps {
  // A machine that answers stands in the node's place; false: the old one
  // lives, and none is needed.
  std::function<Result<bool>(const std::string& node, const Absence& absence)>
      rent;
  // It takes part in the run.
  std::function<Result<void>(const std::string& node)> join;
  std::function<void()> stop;  // a call of rent that goes on ends soon
};

class Replacements {
 public:
  Replacements(
      const record::RunDirectory& run,
      std::set<std::string> nodes,
      ReplacementSteps steps);
  ~Replacements();

 private:
  struct Missing;
  void follow(const std::stop_token& stopped);
  bool replace(const std::string& node, Missing& missing);

  const record::RunDirectory run_;
  const std::set<std::string> nodes_;
  const ReplacementSteps steps_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace lockstep::commands
