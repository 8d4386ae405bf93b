#pragma once

// The main loop: epochs and steps of a recipe, with its limits, events,
// metrics, validation, pictures and checkpoints. Ranks agree on every decision
// (stop, NaN, limits) by one small reduction a step.

#include <functional>
#include <string>

#include "lockstep/record/run_directory.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/rank_environment.h"
#include "lockstep/train/recipe.h"

namespace lockstep::record {
class EventWriter;
}

namespace lockstep::train {

struct LoopOptions {
  RankEnvironment environment;
  std::string config;  // resolved, as YAML; kept in the checkpoint
  // Called once, by all ranks together, when what was given is known to be
  // good, checkpoints to go on from too: until then an old run's files stay as
  // they are.
  std::function<record::EventWriter&()> begin;
  const record::RunDirectory* run = nullptr;
  std::string checkpoint_dir;
  double started = 0;  // Unix seconds when the process began
};

struct LoopResult {
  int64_t steps = 0;
  int64_t epochs = 0;
  double samples_per_second = 0;  // over all ranks, after the first step
  std::map<std::string, double> metrics;  // the last of each
  std::optional<double> best;
  std::string best_metric;  // what `best` is of
  double seconds = 0;       // trained, over all sittings
  bool stopped = false;     // by a signal, after a checkpoint
};

// Throws TrainError: a loss that is no number (step and rank named, the last
// good checkpoint kept), a lost rank, a disk that is full.
LoopResult
run_loop(Recipe& recipe, const Context& context, const LoopOptions& options);

}  // namespace lockstep::train
