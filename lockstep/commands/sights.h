#pragma once

// What the events of a run tell the optimiser: each node's own seconds a
// sample, without its wait, and the communication of all, over the steps of a
// period. Events are taken one by one, in any order between ranks. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/wire/event.h"

namespace lockstep::commands {

class Sights {
 public:
  // `ranks_a_node`: ranks are numbered node by node.
  explicit Sights(int ranks_a_node = 1) : ranks_a_node_(ranks_a_node) {}
  void take(const wire::Event& event);

  int64_t last_step() const;
  std::optional<double> total_steps() const { return total_steps_; }
  double first_time() const { return first_time_; }  // of an iteration; 0: none

  struct Node {
    double compute = 0;  // median seconds a sample; 0: it told none of its own
    double spread = 0;   // of the logarithm of that
  };
  struct Look {
    std::vector<Node> nodes;
    double communication = 0;  // median, of the rank that computes longest
    int64_t steps = 0;         // that every rank told
  };
  // Over steps from `first` to the last.
  Look look(int64_t first, size_t nodes) const;

 private:
  struct Part {
    double samples = 0;
    double seconds = 0;  // compute and data
    double communication = 0;
    bool split = false;  // the rank told its wait or communication
  };
  int ranks_a_node_;
  std::map<int64_t, std::map<int, Part>> steps_;
  std::optional<double> total_steps_;
  double first_time_ = 0;
};

}  // namespace lockstep::commands
