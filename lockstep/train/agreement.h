#pragma once

// What the ranks tell each other after a step, as one vector that is summed:
// their metrics, samples, wishes to stop, and for each rank a slot for a loss
// that is no number and one for the seconds it worked. So all ranks decide
// alike. One thread.

#include <span>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::train {

class Agreement {
 public:
  Agreement(collective::Communicator& group, size_t num_metrics);

  struct Own {
    const double* metrics = nullptr;
    int64_t samples = 0;
    double seconds = 0;  // of work, without waiting for others
    bool stop = false;
    bool out_of_time = false;
  };
  collective::Timing reduce(const Own& own);

  double mean(size_t metric) const { return values_[metric] / group_.size(); }
  int64_t samples() const {
    return static_cast<int64_t>(values_[num_metrics_]);
  }
  bool stop() const { return values_[num_metrics_ + 1] > 0; }
  bool out_of_time() const { return values_[num_metrics_ + 2] > 0; }
  int first_nan_rank() const;               // -1: none
  std::span<const double> seconds() const;  // by rank

 private:
  collective::Communicator& group_;
  size_t num_metrics_;
  std::vector<double> values_;
};

}  // namespace lockstep::train
