#pragma once

// The iterations of a probe or a run, summed up: which of them speak for the
// present phase, their mean with its interval, whether they drift, and what
// could not be used (times that are not positive or not finite, gaps that only
// a clock that jumped explains). Pure.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/estimate.h"
#include "lockstep/economics/phases.h"

namespace lockstep::economics {

struct IterationSummary {
  size_t seen = 0;        // all that came, also what could not be used
  size_t impossible = 0;  // not positive, or not finite
  size_t jumps = 0;       // a thousand times the median: the clock jumped
  std::vector<LevelPhase> phases;  // over what was used, in order
  // Those of the last phase, without the very first iteration of all.
  std::vector<double> present;
  // Of each that came: not used, before the present, present.
  enum class Role : char { kUnused, kPast, kPresent };
  std::vector<Role> roles;
  Estimate estimate;
  double median = 0;
  double drift = 0;       // of an iteration, as a share of the mean
  bool drifting = false;  // the drift is no chance and adds up to 10%
};

// None when nothing can be used.
std::optional<IterationSummary> sum_up(
    std::span<const double> seconds,
    const Caution& caution = {});

// What is missing or odd, for a person; empty when all is well.
std::vector<std::string> remarks(const IterationSummary& summary);

}  // namespace lockstep::economics
