#pragma once

// Where the time of an iteration changes its level: the end of a warm-up, a
// part of the work that begins late. Found by the cheapest cut of the series
// into level pieces (least absolute deviations of the logarithms, a price for
// each piece), so that single spikes (a checkpoint, a neighbour) make no phase.
// A steady slope is a drift, not a row of phases. Pure.

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::economics {

struct LevelPhase {
  size_t begin = 0;  // index of its first iteration
  size_t end = 0;    // one past its last
  double median = 0;
};

struct PhaseOptions {
  size_t shortest = 3;      // iterations; only the first phase may be shorter
  double price = 3;         // x noise x ln(n), for each further phase
  double least_step = 0.1;  // of ln(median) between neighbours
};

// At least one phase for a series that is not empty; they follow each other
// without gaps. Values must be positive and finite. Long series are looked at
// in 256 pieces of equal length.
std::vector<LevelPhase> find_phases(
    std::span<const double> seconds,
    const PhaseOptions& options = {});

}  // namespace lockstep::economics
