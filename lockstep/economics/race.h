#pragma once

// Who goes on being measured: probes of candidates race, and one is stopped as
// soon as its interval says that it is neither the cheapest nor the fastest,
// or when the cap in dollars leaves no room for it. One function, the same for
// probes on real machines and for recorded runs: from what is known of all to
// a ruling for each. Pure; it keeps nothing between calls.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/estimate.h"

namespace lockstep::economics {

enum class Standing {
  kRacing,
  kLost,    // neither the cheapest nor the fastest
  kCapped,  // might be, but its next stage would pass the cap
  kEnough,  // measured to the last stage, or nobody is left to beat
  kFailed,  // its probe ended by itself
};

struct Racer {
  double dollars_per_hour = 0;  // of all its nodes; above 0
  std::optional<Estimate> iteration{};
  double samples = 1;  // an iteration; 1 everywhere when nobody tells
  double reached = 0;  // iterations run, warm-up included
  double pending = 0;  // seconds since the last one ended: a lower bound
  double dollars = 0;  // spent on its probe
  Standing standing = Standing::kRacing;  // by earlier rulings
};

struct RaceOptions {
  // How many standard deviations of a difference must lie between two.
  double cost_width = 2.5;
  double time_width = 2;  // 0: nobody asks for the fastest
  // A probe goes from one to the next; past the last it has seen enough.
  std::vector<double> stages = {2, 5, 10, 32, 64};
  // Of the dollars of bringing everybody to the last stage, as far as is known.
  double cap_share = 0.2;
  std::optional<double> cap_dollars{};  // and never more than this
  // Even one that stands alone goes on to this many iterations.
  double at_least = 0;
  Caution caution{};
};

struct Ruling {
  Standing standing = Standing::kRacing;
  double target = 0;   // iterations to go on to while racing
  std::string reason;  // of a standing that is new
};

// One ruling a racer; one that races no more keeps its standing.
std::vector<Ruling> judge(
    std::span<const Racer> racers,
    const RaceOptions& options = {});

// Whom the estimates call the cheapest (mean x price) and the fastest (mean);
// none while there is no estimate. Early estimates are not compared with late
// ones: who lost is out, and for the cheapest who was capped, unless nobody
// else is left.
std::optional<size_t> cheapest(std::span<const Racer> racers);
std::optional<size_t> fastest(std::span<const Racer> racers);

// Standard deviations by which the first is cheaper than the second; below 0
// when it is not. How sure a verdict is.
double cheaper_by(const Racer& first, const Racer& second);

}  // namespace lockstep::economics
