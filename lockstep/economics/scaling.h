#pragma once

// How the time of an iteration follows the number of nodes, from the measured
// split of compute and communication. With n nodes, weak scaling (the batch of
// a node stays):
//
//   t(n) = compute + volume x 2 (n - 1) / n + latency x (n - 1)
//
// the second term a ring's all-reduce (each byte goes round twice), the third
// what each further member adds. Strong scaling divides compute by n. Pure.
// Beyond what was measured the doubt grows with each doubling.

#include <optional>
#include <span>
#include <string>

#include "lockstep/economics/estimate.h"

namespace lockstep::economics {

// One measured node count; seconds an iteration of the slowest rank, without
// its wait for others.
struct Split {
  int nodes = 1;
  double compute = 0;        // and data
  double communication = 0;  // exposed
  double spread = 0.05;      // of ln(sum)
};

struct ScalingModel {
  double compute = 0;
  double volume = 0;
  double latency = 0;
  double spread = 0.05;  // of what was measured
  int measured = 1;      // most nodes that were
  bool strong = false;   // the batch of all nodes together stays
  // Seconds an iteration with its doubt.
  Estimate iteration(int nodes) const;
};

// Doubt by doubling of nodes beyond those measured, added to the spread: less
// when communication was seen at all.
inline constexpr double kDoubtPerDoubling = 0.1;
inline constexpr double kDoubtUnseen = 0.3;

// Least squares over the splits, no term below 0; with one node count above 1
// all communication counts as volume. None without a split whose compute is
// above 0.
std::optional<ScalingModel> fit_scaling(
    std::span<const Split> splits,
    bool strong = false);

}  // namespace lockstep::economics
