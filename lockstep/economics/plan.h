#pragma once

// From what is known of each machine to what to take: time and cost of the
// whole run for every machine and node count, those that no other beats in
// both (the Pareto front), the cheapest within a duration and the fastest
// within a budget. Pure; ten thousand configurations take milliseconds.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/predict.h"
#include "lockstep/economics/scaling.h"

namespace lockstep::economics {

// A machine and how the job runs on one or several of it.
struct PlanOffer {
  Machine machine;
  ScalingModel scaling;
  int most_nodes = 1;
  double init = 0;
  double end = 0;
  Estimate epoch_end{};  // seconds of a validation with its checkpoint; 0: none
  double samples_a_node = 0;  // where it differs from the work's; 0: as there
  // The first so many samples are of an earlier phase, whose iterations take
  // so many times those of the rest.
  double early_samples = 0;
  double early_ratio = 1;
  double drift = 0;  // of an iteration, as a share; 0: none
};

struct PlanWork {
  double samples = 0;         // of the whole run
  double samples_a_node = 0;  // and iteration (weak), or of all nodes (strong)
  double epoch_ends = 0;      // how many the whole run has
};

struct PlanLimits {
  std::optional<double> max_seconds{};
  std::optional<double> budget{};  // dollars
  // Limits hold for the upper end of an interval when this is set.
  bool surely = true;
};

struct PlanRow {
  size_t offer = 0;
  int nodes = 1;
  double iterations = 0;
  Estimate iteration;
  Prediction prediction;
  double samples_per_dollar = 0;
  bool on_front = false;
  bool in_time = true;
  bool in_budget = true;
};

struct Plan {
  std::vector<PlanRow> rows;  // by offer, then nodes
  std::vector<size_t> front;  // by rising cost
  // Of the rows within both limits; none: nothing fits.
  std::optional<size_t> cheapest;  // within the duration; none without prices
  std::optional<size_t> fastest;   // within the budget
};

// Offers without an iteration give no rows; those without a price give times
// alone: they are never the cheapest, in no budget and not on the front.
Plan make_plan(
    std::span<const PlanOffer> offers,
    const PlanWork& work,
    const PlanLimits& limits = {});

// One sentence: which to take and why, or what does not fit.
std::string plan_verdict(
    const Plan& plan,
    std::span<const PlanOffer> offers,
    const PlanLimits& limits);

}  // namespace lockstep::economics
