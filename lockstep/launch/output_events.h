#pragma once

// Makes events from the output of a program that writes none, by the job's
// patterns: group `step` gives an iteration (with `epoch` and `samples` where
// they are named), `epoch` an epoch; every other named number is a metric.
// Iteration time is the time between two lines, all of it counted as compute.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/pattern.h"
#include "lockstep/wire/event.h"

namespace lockstep::launch {

class OutputEvents {
 public:
  // Either may be empty.
  static Result<OutputEvents> make(
      const std::string& iteration_pattern,
      const std::string& epoch_pattern);
  bool active() const { return iterations_ || epochs_; }
  // `time`: Unix seconds at which the line was read.
  std::vector<wire::EventBody> take(std::string_view line, double time);

 private:
  std::optional<Pattern> iterations_;
  std::optional<Pattern> epochs_;
  double last_iteration_ = 0;  // time; 0: none yet
  double last_epoch_ = 0;
  int64_t step_ = 0;
  int64_t epoch_ = 0;
  int64_t epoch_first_step_ = 0;
};

}  // namespace lockstep::launch
