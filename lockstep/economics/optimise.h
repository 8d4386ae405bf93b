#pragma once

// Whether to change the cluster while it trains: a function from what was seen
// so far and what could be rented now to one decision with its reason and its
// cost. Pure: it rents nothing, keeps nothing, knows no clock.
//
// A set of machines is judged by what the rest of the run costs (or takes) on
// it. In synchronous training all iterations last alike, so machines are told
// apart by their own compute time, without the wait. A change pays for the boot
// of what is new and for the pause of all; it is made only when the rest of
// the run pays for it with room to spare, when the interval says that the gain
// is no noise, and when the changes of the whole run stay a small share of its
// cost (for time: their pauses of its time). So it never goes back and forth.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::economics {

enum class Goal { kCost, kTime };

// A kind of machine that could be rented now.
struct CatalogueEntry {
  std::string name;
  double dollars_per_hour = 0;  // now; 0: not for sale
  double ready = 0;             // seconds from the order until it can train
  int available = 0;            // nodes at most
  // Compute seconds a sample of one node as a probe or a past run measured it;
  // 0: never seen.
  double compute = 0;
};

// A node in one period.
struct NodeSight {
  std::string name;
  size_t kind = 0;       // in the catalogue
  double compute = 0;    // seconds a sample without the wait; 0: none reported
  double spread = 0.05;  // of its logarithm
};

struct Period {
  std::vector<NodeSight> nodes;
  double communication = 0;  // exposed seconds an iteration
  bool full = true;  // the same nodes worked from its beginning to its end
};

struct PastChange {
  size_t period = 0;  // that it came after
  double dollars = 0;
};

struct History {
  std::vector<Period> periods;  // the last is now
  std::vector<PastChange> changes;
  double samples_left = 0;
  double dollars_spent = 0;
  std::optional<double> budget_left;   // dollars
  std::optional<double> seconds_left;  // until the duration or lease ends
};

struct OptimiseOptions {
  Goal goal = Goal::kCost;
  double samples_a_node = 1;  // and iteration
  // Samples an iteration where they stay the same on any number of nodes, and
  // how many parts a node takes: then nodes x parts must divide them. 0: each
  // node brings samples_a_node.
  int64_t batch = 0;
  int parts_a_node = 1;
  bool balanced = false;  // shares follow speed: the sum of the speeds counts
  int most_nodes = 16;
  double pause = 30;  // seconds that a change stops everybody
  // Hysteresis.
  double least_gain = 0.05;    // of what is left
  double gain_per_change = 1;  // x the cost of the change, on top of it
  double sureness = 2;         // standard deviations
  size_t hold = 2;             // full periods between two changes
  // Share of all dollars, or for time of all seconds that are left, that
  // changes may take.
  double most_changing = 0.15;
};

struct Decision {
  enum class Action { kKeep, kChange };
  Action action = Action::kKeep;
  std::vector<std::string> stop;  // names of nodes
  std::vector<int> start;         // new nodes by kind; empty: none
  double dollars = 0;             // what the change costs
  double gain = 0;  // dollars (or seconds) that it saves after paying for it
  std::string reason;
};

Decision decide(
    const History& history,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options = {});

}  // namespace lockstep::economics
