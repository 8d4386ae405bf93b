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
  int max_trials = 19;
  double sample_bytes = 0;  // that a sample takes outside the trial (loader)
  int64_t first = 0;        // what is believed to fit; 0: nothing is known
  // `most` was asked for, and is refused when it does not fit: it may be what a
  // search has found, whose peak is another each time by a little.
  bool asked = false;
  double limit = 0;     // bytes, where it is below the meter's; 0: not
  double estimate = 0;  // bytes that a sample takes, roughly; 0: unknown
  // Who takes more than the limit may be killed instead of refused (a CPU's
  // memory is promised before it is there): no trial that might is made.
  bool deadly = false;
  // Asked after each trial; a signal (0: none) on any rank ends the search on
  // all by a TrainError.
  std::function<int()> stop_signal{};
};

struct BatchFit {
  int64_t batch = 0;     // 0: not even one sample fits
  double peak = 0;       // bytes at that batch, of the rank that uses most
  double limit = 0;      // bytes, of the rank that has least
  bool largest = false;  // not: the trials ended before that was known
  int64_t failed = 0;    // the smallest whose allocation failed; 0: none
  int trials = 0;
  // "batch 96: 3.1 GiB of 4 GiB a rank (10% are kept free), 5 trials"; less is
  // told where one that was asked for leaves less.
  std::string to_string(double margin) const;
};

// `trial` must leave the training state as it was, and issue no collective
// that another rank would wait for. `group` null: this rank alone.
BatchFit find_batch(
    const std::function<void(int64_t)>& trial,
    MemoryMeter& meter,
    collective::Communicator* group,
    const BatchSearchOptions& options);

// The same for a trial that runs in several modes, each of which keeps less
// than the one before: the first in which the most fits, else the one with the
// largest batch. `use` is called before a mode's trials, and at last for the
// mode that is taken. All modes share options.max_trials.
struct ModeFit {
  size_t mode = 0;  // its index
  BatchFit fit;     // trials: of all modes
};
ModeFit find_mode(
    size_t num_modes,
    const std::function<void(size_t)>& use,
    const std::function<void(int64_t)>& trial,
    MemoryMeter& meter,
    collective::Communicator* group,
    const BatchSearchOptions& options);

}  // namespace lockstep::train
