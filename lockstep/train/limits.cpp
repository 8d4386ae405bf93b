#include "lockstep/train/limits.h"

#include <algorithm>
#include <limits>

namespace lockstep::train {
namespace {

int64_t steps_of(const TrainerConfig& trainer, int64_t batches) {
  return batches / trainer.accumulate +
         (batches % trainer.accumulate != 0 ? 1 : 0);
}

// As many steps as can be counted, where there would be more.
int64_t limited(int64_t factor, int64_t times, int64_t plus) {
  int64_t product = 0;
  int64_t sum = 0;
  return __builtin_mul_overflow(factor, times, &product) ||
                 __builtin_add_overflow(product, plus, &sum)
             ? std::numeric_limits<int64_t>::max()
             : sum;
}

// The step at which so many epochs are over.
int64_t step_after(
    int64_t epochs,
    const TrainerConfig& trainer,
    const EpochSize& epoch,
    const Progress& progress) {
  if (progress.epoch >= epochs) {
    return progress.step;
  }
  // The loader goes on at this batch.
  const int64_t next = progress.samples_in_epoch / epoch.batch_samples;
  const int64_t left = std::max<int64_t>(0, epoch.batches - next);
  return limited(
      steps_per_epoch(trainer, epoch),
      epochs - progress.epoch - 1,
      progress.step + steps_of(trainer, left));
}

}  // namespace

int64_t steps_per_epoch(const TrainerConfig& trainer, const EpochSize& epoch) {
  return steps_of(trainer, epoch.batches);
}

int64_t total_steps(
    const TrainerConfig& trainer,
    const EpochSize& epoch,
    const Progress& progress) {
  const auto after = [&](int64_t epochs) {
    return step_after(epochs, trainer, epoch, progress);
  };
  const int64_t by_epochs =
      trainer.max_epochs > 0 ? after(trainer.max_epochs) : 0;
  if (trainer.max_steps == 0) {
    return by_epochs;
  }
  const int64_t by_steps =
      trainer.min_epochs > 0
          ? std::max(trainer.max_steps, after(trainer.min_epochs))
          : trainer.max_steps;
  return trainer.max_epochs > 0 ? std::min(by_epochs, by_steps) : by_steps;
}

bool is_out_of_time(const TrainerConfig& trainer, const Progress& progress) {
  return trainer.max_seconds > 0 && progress.seconds >= trainer.max_seconds &&
         progress.epoch >= trainer.min_epochs;
}

}  // namespace lockstep::train
