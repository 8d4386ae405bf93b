#include "lockstep/economics/replay.h"

#include <algorithm>
#include <map>

namespace lockstep::economics {
namespace {

// A mean over more iterations than the one before tells those in between; when
// the two contradict each other (the first iteration is in one of them only)
// no less than this share of the last mean is believed.
constexpr double kLeast = 0.05;

Block between(double end, double mean, double before_end, double before) {
  const double count = end - before_end;
  const double rest = (end * mean - before_end * before) / count;
  return {count, std::max(rest, kLeast * mean)};
}

// What the mean of a stage adds to the block of the one before it (one past its
// index; 0: there is none). Stages 0 to 2 leave the first iteration out, so
// they count one less.
Block added_block(const Stages& stages, size_t before, size_t index) {
  const double mean = *stages[index];
  const bool without_first = index <= 2;
  const double less = without_first ? 1 : 0;
  if (before == 0) {
    return {kStageEnds[index] - less, mean};
  }
  return between(
      kStageEnds[index] - less,
      mean,
      kStageEnds[before - 1] - less,
      *stages[before - 1]);
}

bool is_known(const std::optional<double>& stage) {
  return stage && *stage > 0;
}

double true_cost(const RecordedRun& run) {
  return run.mean * run.seen.dollars_per_hour;
}

// Dollars, but for a factor that is the same everywhere. Short runs end before
// the stage does.
double dollars(const RecordedRun& run, size_t num_stages) {
  if (num_stages == 0) {
    return 0;
  }
  const double count = std::min(kStageEnds[num_stages - 1], run.iterations);
  return count * run.seen.stages[num_stages - 1].value_or(0) *
         run.seen.dollars_per_hour;
}

// One past the last; 0: none.
size_t known_stages(const RecordedRun& run) {
  size_t count = kNumStages;
  while (count > 0 && !is_known(run.seen.stages[count - 1])) {
    --count;
  }
  return count;
}

}  // namespace

double Recording::dollars_per_hour(size_t candidate) const {
  return candidates_[candidate].dollars_per_hour;
}

bool Recording::buy(size_t candidate, std::vector<Block>& blocks) {
  const size_t before = bought_[candidate];
  const Stages& stages = candidates_[candidate].stages;
  size_t next = before;
  while (next < kNumStages && !is_known(stages[next])) {
    ++next;
  }
  if (next == kNumStages) {
    return false;
  }
  blocks.push_back(added_block(stages, before, next));
  bought_[candidate] = next + 1;
  return true;
}

std::optional<Picks> race(Recording& recording, const RaceOptions& options) {
  RaceOptions used = options;
  used.stages.assign(kStageEnds.begin(), kStageEnds.end());
  std::vector<Racer> racers(recording.num_candidates());
  std::vector<std::vector<Block>> blocks(racers.size());
  const auto measure = [&](size_t i) {
    Racer& racer = racers[i];
    if (!recording.buy(i, blocks[i])) {
      racer.standing = racer.iteration ? Standing::kEnough : Standing::kFailed;
      return;
    }
    racer.iteration = estimate(std::span<const Block>(blocks[i]), used.caution);
    racer.reached = kStageEnds[recording.bought(i) - 1];
    racer.dollars =
        racer.reached * racer.iteration->mean * racer.dollars_per_hour / 3600;
  };
  for (size_t i = 0; i < racers.size(); ++i) {
    racers[i].dollars_per_hour = recording.dollars_per_hour(i);
    measure(i);
  }
  for (bool again = true; again;) {
    again = false;
    const std::vector<Ruling> rulings = judge(racers, used);
    for (size_t i = 0; i < racers.size(); ++i) {
      racers[i].standing = rulings[i].standing;
    }
    for (size_t i = 0; i < racers.size(); ++i) {
      if (racers[i].standing == Standing::kRacing) {
        measure(i);
        again = true;
      }
    }
  }
  const auto first = cheapest(racers);
  const auto quickest = fastest(racers);
  if (!first || !quickest) {
    return std::nullopt;
  }
  Picks picks{*first, *quickest, {}};
  for (size_t i = 0; i < racers.size(); ++i) {
    picks.stages.push_back(recording.bought(i));
  }
  return picks;
}

ReplayScore replay(
    std::span<const RecordedRun> runs,
    const RaceOptions& options) {
  std::map<std::string, std::vector<const RecordedRun*>> experiments;
  for (const RecordedRun& run : runs) {
    experiments[run.experiment].push_back(&run);
  }
  ReplayScore score;
  double spent = 0;
  double all = 0;
  for (const auto& [name, group] : experiments) {
    std::vector<Recording::Candidate> candidates;
    for (const RecordedRun* run : group) {
      candidates.push_back(run->seen);
    }
    Recording recording(std::move(candidates));
    const auto picks = race(recording, options);
    if (!picks) {
      score.left_out.push_back(name);
      continue;
    }
    double lowest = true_cost(*group[0]);
    double shortest = group[0]->mean;
    for (size_t i = 0; i < group.size(); ++i) {
      lowest = std::min(lowest, true_cost(*group[i]));
      shortest = std::min(shortest, group[i]->mean);
      spent += dollars(*group[i], picks->stages[i]);
      all += dollars(*group[i], known_stages(*group[i]));
    }
    const double regret = true_cost(*group[picks->cheapest]) / lowest - 1;
    score.experiments += 1;
    score.cheapest += regret <= 0 ? 1 : 0;
    score.fastest += group[picks->fastest]->mean <= shortest ? 1 : 0;
    score.mean_regret += regret;
    score.max_regret = std::max(score.max_regret, regret);
  }
  if (score.experiments > 0) {
    const auto count = static_cast<double>(score.experiments);
    score.cheapest /= count;
    score.fastest /= count;
    score.mean_regret /= count;
  }
  score.probe_cost = all > 0 ? spent / all : 0;
  return score;
}

}  // namespace lockstep::economics
