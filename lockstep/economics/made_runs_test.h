#pragma once

// Made recordings where the truth is known: machines with a speed and a price,
// an application with a warm-up, noise, spikes and now and then a phase that
// begins late. Seeded, so that a failure comes again. For tests only.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lockstep/economics/replay.h"

namespace lockstep::economics {

struct MadeWorld {
  int experiments = 120;
  int least_machines = 3;
  int most_machines = 20;
  double speed_spread = 0.7;  // of ln(speed) between machines
  double price_spread = 0.6;  // of ln(price) around what the speed is worth
  double noise = 0.1;         // of ln(iteration)
  double heavy = 0.02;        // share of iterations that are spikes
  double spike = 4;           // times as long
  double warm_up = 0.5;       // how much longer the first iterations are
  double warm_up_length = 4;  // iterations until a third of it is left
  double warm_up_own = 0.3;   // how much machines differ in it
  double late_phase = 0;      // share of experiments with one, after 100
};

struct MadeSeries {
  double dollars_per_hour = 0;
  std::vector<double> seconds;
};

inline RecordedRun record_run(
    const std::string& experiment,
    const MadeSeries& made) {
  const auto mean = [&](size_t first, size_t last) {
    last = std::min(last, made.seconds.size());
    double sum = 0;
    for (size_t i = first; i < last; ++i) {
      sum += made.seconds[i];
    }
    return sum / static_cast<double>(last - first);
  };
  RecordedRun run;
  run.experiment = experiment;
  run.seen.dollars_per_hour = made.dollars_per_hour;
  run.seen.stages = {
      mean(1, 2), mean(1, 5), mean(1, 10), mean(0, 32), mean(0, 64)};
  run.mean = mean(0, made.seconds.size());
  run.iterations = static_cast<double>(made.seconds.size());
  return run;
}

inline std::vector<RecordedRun> make_runs(const MadeWorld& world, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal(0, 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<RecordedRun> runs;
  for (int e = 0; e < world.experiments; ++e) {
    const int machines =
        world.least_machines +
        static_cast<int>(
            uniform(random) * (world.most_machines - world.least_machines + 1));
    const auto length =
        static_cast<size_t>(std::exp(5 + 2 * uniform(random)));  // 148 to 1096
    const double base = std::exp(-4 + 5 * uniform(random));
    const bool late = uniform(random) < world.late_phase;
    for (int m = 0; m < machines; ++m) {
      const double speed = std::exp(world.speed_spread * normal(random));
      const double late_factor = std::exp(0.3 * normal(random));
      const double rise =
          world.warm_up * std::exp(world.warm_up_own * normal(random));
      MadeSeries made;
      made.dollars_per_hour =
          0.1 * speed * std::exp(world.price_spread * normal(random));
      for (size_t i = 0; i < length; ++i) {
        double one = base / speed * std::exp(world.noise * normal(random));
        one *=
            1 + rise * std::exp(-static_cast<double>(i) / world.warm_up_length);
        one *= uniform(random) < world.heavy ? world.spike : 1;
        one *= late && i >= 100 ? late_factor : 1;
        made.seconds.push_back(one);
      }
      runs.push_back(record_run(fmt::format("made/{}", e), made));
    }
  }
  return runs;
}

// What measuring the first 64 everywhere would have picked.
inline ReplayScore first_64_everywhere(const std::vector<RecordedRun>& runs) {
  RaceOptions all;
  all.cost_width = 1e9;
  all.time_width = 1e9;
  all.cap_share = 1e9;
  return replay(runs, all);
}

}  // namespace lockstep::economics
