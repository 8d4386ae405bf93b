#pragma once

// How many steps a run has, counted from where it begins: a resumed run may
// have other ranks or another batch than before, so the steps it did say
// nothing about its epochs. Pure.

#include <cstdint>

#include "lockstep/train/checkpoint.h"
#include "lockstep/train/config.h"

namespace lockstep::train {

struct EpochSize {
  int64_t batches = 0;        // of a rank
  int64_t batch_samples = 0;  // over all ranks
};

// Steps an epoch has from its beginning.
int64_t steps_per_epoch(const TrainerConfig& trainer, const EpochSize& epoch);

// The number of the last step by max_epochs, max_steps and min_epochs; 0: no
// such limit. Never below `progress.step` otherwise.
int64_t total_steps(
    const TrainerConfig& trainer,
    const EpochSize& epoch,
    const Progress& progress);

// Whether trainer.max_seconds were used up by earlier sittings.
bool is_out_of_time(const TrainerConfig& trainer, const Progress& progress);

}  // namespace lockstep::train
