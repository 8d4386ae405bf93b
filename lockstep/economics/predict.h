#pragma once

// Time and cost of a whole run from its parts:
//
//   time = boot + set-up + init + sum over phases (iterations x PI) + end
//   cost = billed(time) x price x nodes
//
// with boot and set-up paid for, billing by started units, and interrupted
// machines paid for twice where work is lost. Each figure carries an interval;
// a drift that goes on is in its upper end. Pure. What is not known (how many
// iterations there will be) gives no prediction, never a guess.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/estimate.h"

namespace lockstep::economics {

struct Quantity {
  double value = 0;
  double low = 0;
  double high = 0;
};

struct Billing {
  double unit = 1;     // seconds; a started one is paid for
  double minimum = 0;  // seconds
};

struct Machine {
  std::string name{};
  double dollars_per_hour = 0;  // of one node
  double boot = 0;              // seconds until it can be reached
  double setup = 0;             // seconds until the program can start
  Billing billing{};
  double interruptions_per_hour = 0;  // of a spot machine, each node's own
  double lost_per_interruption = 0;   // seconds of work done again, and a boot
};

// Iterations of one kind.
struct WorkPhase {
  double iterations = 0;
  Estimate iteration;
  double drift = 0;  // of an iteration, as a share; 0: none
};

struct Work {
  double init =
      0;           // seconds from the start of a process to its first iteration
  double end = 0;  // seconds after the last
  std::vector<WorkPhase> phases{};
};

struct Prediction {
  Quantity seconds;
  Quantity dollars;
  bool priced = false;  // false: no price, dollars say nothing
};

// Seconds that are paid for.
double billed_seconds(double seconds, const Billing& billing);

// None when no phase has iterations, or one has no estimate.
std::optional<Prediction>
predict(const Machine& machine, int nodes, const Work& work, double z = 1.96);

}  // namespace lockstep::economics
