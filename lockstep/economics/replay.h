#pragma once

// Recorded runs played again through the race: what would have been picked,
// what that would have cost in regret, and what the measuring would have cost.
// The race sees an experiment only through `Recording`, which sells one stage
// of one candidate at a time and holds nothing else: what was not bought, and
// the truth, cannot be read by it. The truth meets the picks afterwards, in
// the score. Pure.

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/race.h"

namespace lockstep::economics {

inline constexpr size_t kNumStages = 5;
// Iterations that have run when a stage has been seen; the first four are
// counted from the second iteration or include the first, as their names say.
inline constexpr std::array<double, kNumStages> kStageEnds = {2, 5, 10, 32, 64};

// Means in milliseconds (any unit will do) of the second iteration, of 2-5,
// 2-10, the first 32 and the first 64. An absent stage is none.
using Stages = std::array<std::optional<double>, kNumStages>;

// One experiment as the race may see it.
class Recording {
 public:
  struct Candidate {
    double dollars_per_hour = 0;  // of all its nodes
    Stages stages;
  };
  explicit Recording(std::vector<Candidate> candidates)
      : candidates_(std::move(candidates)), bought_(candidates_.size(), 0) {}

  size_t num_candidates() const { return candidates_.size(); }
  double dollars_per_hour(size_t candidate) const;
  // The next stage that there is as the blocks that all bought ones are made
  // of; false when there is none.
  bool buy(size_t candidate, std::vector<Block>& blocks);
  // One past the last stage that was bought; 0: none was.
  size_t bought(size_t candidate) const { return bought_[candidate]; }

 private:
  std::vector<Candidate> candidates_;
  std::vector<size_t> bought_;
};

struct Picks {
  size_t cheapest = 0;
  size_t fastest = 0;
  std::vector<size_t> stages;  // one past the last bought, by candidate
};
// Races the candidates; none when no candidate has a stage.
std::optional<Picks> race(
    Recording& recording,
    const RaceOptions& options = {});

// A recorded run with its truth.
struct RecordedRun {
  std::string experiment;
  Recording::Candidate seen;
  double mean = 0;        // of all iterations: the truth
  double iterations = 0;  // that it had
};

struct ReplayScore {
  size_t experiments = 0;
  std::vector<std::string> left_out;  // experiments without any stage
  double cheapest = 0;     // share of experiments where it was picked
  double fastest = 0;      // likewise
  double mean_regret = 0;  // cost of the pick / lowest cost - 1
  double max_regret = 0;
  double probe_cost = 0;  // dollars / those of the first 64 everywhere
};
// Runs of one experiment need not stand together.
ReplayScore replay(
    std::span<const RecordedRun> runs,
    const RaceOptions& options = {});

}  // namespace lockstep::economics
