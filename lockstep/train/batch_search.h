#pragma once

// The largest batch that fits into memory, found by trying: each trial is a
// forward and a backward of n samples whose peak is measured; a line through
// the peaks says what to try next, so that few trials are needed and running
// out of memory is rare; when it happens it is caught and counts as "does not
// fit". All ranks try the same sizes together and agree on what fits all of
// them. A share of the limit, the margin, stays free.

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/collective/communicator.h"
#include "lockstep/train/memory.h"

namespace lockstep::train {

struct BatchSearchOptions {
  int64_t most = 1;    // never above
  double margin = .1;  // share of the limit
  int max_trials = 16;
  double sample_bytes = 0;  // that a sample takes outside the trial (loader)
};

struct BatchFit {
  int64_t batch = 0;  // 0: not even one sample fits
  double peak = 0;    // bytes at that batch, of the rank that uses most
  double limit = 0;   // bytes, of the rank that has least
  int trials = 0;
  // "batch 96: 3.1 GiB of 4 GiB a rank (10% are kept free), 5 trials".
  std::string to_string(double margin) const;
};

// `trial` must leave the training state as it was, and issue no collective
// that another rank would wait for. `group` null: this rank alone.
BatchFit find_batch(
    const std::function<void(int64_t)>& trial,
    MemoryMeter& meter,
    collective::Communicator* group,
    const BatchSearchOptions& options);

}  // namespace lockstep::train
