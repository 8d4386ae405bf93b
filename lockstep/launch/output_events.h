#pragma once

// Makes events from the output of a program that writes none, by the job's
// patterns: group `step` gives an iteration (with `epoch` and `samples` where
// they are named), `epoch` an epoch; every other named number is a metric.
// Iteration time is the time between two lines, all of it counted as compute.
// Steps that begin anew (3 of 10, again and again) are counted on; one that is
// told twice in a row is one iteration.

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
  // Lines that were found at one look, `time` (Unix seconds) being when. What
  // was written since the look before is taken as written at even distances:
  // the sum of the times is right, whatever the pace of the looks.
  std::vector<wire::Event> take(
      const std::vector<std::string>& lines,
      double time);

  // The program was started again: a step that it tells is that step, since it
  // may go on from a checkpoint.
  void restart();

 private:
  std::vector<wire::EventBody> take_line(std::string_view line, double time);

  std::optional<Pattern> iterations_;
  std::optional<Pattern> epochs_;
  double last_look_ = 0;  // time; 0: none yet
  double last_line_ = 0;  // of the last line that said something
  double last_iteration_ = 0;
  double last_epoch_ = 0;
  int64_t step_ = 0;
  std::optional<int64_t> told_step_;  // as the program counts
  std::optional<int64_t> told_epoch_;
  int64_t steps_before_ = 0;  // that count began
  int64_t epoch_ = 0;
  int64_t epoch_first_step_ = 0;
};

}  // namespace lockstep::launch
