#pragma once

// What the events of a probe (or of any run) tell the economics: how long it
// took to be ready, each iteration as the slowest rank had it, where phases
// begin, what lies between iterations (validations, checkpoints), how it ended.
// Events are taken one by one, in any order between ranks. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/economics/iterations.h"
#include "lockstep/economics/predict.h"
#include "lockstep/wire/event.h"

namespace lockstep::commands {

class ProbeStory {
 public:
  void take(const wire::Event& event);

  // Steps that every rank has told, in order.
  struct Step {
    int64_t step = 0;
    double seconds = 0;        // of the slowest rank
    double samples = 0;        // of all ranks
    double compute = 0;        // and data, of the rank that computes longest
    double communication = 0;  // of that rank
    double time = 0;           // Unix seconds, the last rank's
    int phase = 0;             // how many told phases began before it
  };
  std::vector<Step> steps() const;

  // What rank 0 did between two iterations, where it validated: an epoch's end.
  struct Break {
    double validation = 0;  // seconds, of a whole validation
    double checkpoint = 0;
    double other = 0;  // pictures, files
  };
  // With the run's own end, where it was one.
  std::vector<Break> breaks() const;
  // Seconds of rank 0 from its last iteration to its end, without what it
  // validated and saved there; 0 while it runs.
  double closing() const;
  // Steps of an epoch, as the program tells it.
  std::optional<double> epoch_steps() const { return epoch_steps_; }

  int world_size() const { return world_size_; }
  // From the start of the processes until the slowest was ready.
  double init() const { return init_; }
  // Unix seconds of the first sign of a rank; 0: none.
  double first_sign() const;
  double last_sign() const { return last_sign_; }
  // Of the whole run, as the program tells it (`total_steps` of init, or a
  // number named `total` in the pattern of a program without events).
  std::optional<double> total_steps() const { return total_steps_; }
  // All ranks ended by themselves, and well.
  bool finished() const;
  double end_time() const { return end_time_; }

 private:
  struct Told {
    Step step;
    int ranks = 0;
  };
  // Since rank 0's last iteration.
  struct Between {
    int64_t step = 0;  // the iteration
    double since = 0;  // its end, Unix seconds; 0: there was none
    double validating_since = 0;
    bool validated = false;
    Break sums{};
  };
  void take_between(const wire::Event& event);
  Break whole_break(Break part) const;

  std::map<int64_t, Told> steps_;
  std::map<int, wire::Exit> exits_;
  std::string phase_;
  std::string phase_of_steps_;
  int num_phases_ = 0;
  int world_size_ = 1;
  double init_ = 0;
  double ready_ = 0;  // Unix seconds: start of the processes
  double first_ = 0;
  double last_sign_ = 0;
  double end_time_ = 0;
  double exit_time_ = 0;  // of rank 0
  std::optional<double> total_steps_;
  std::optional<double> epoch_steps_;
  double validation_part_ = 1;  // what a validation here sees of a whole one
  Between between_;
  std::vector<Break> breaks_;
};

// The story in numbers; `iterations` is none when nothing was seen.
struct ProbeFigures {
  std::optional<economics::IterationSummary> iterations;
  size_t seen = 0;  // steps
  // Of each that has a time, in order; 0: it cannot be used.
  std::vector<double> seconds;
  // Steps before the present phase and what they took together.
  double past_steps = 0;
  double past_seconds = 0;
  double samples = 0;        // an iteration, all ranks
  double compute = 0;        // median of the present phase
  double communication = 0;  // likewise
  double init = 0;
  std::optional<double> total_steps;
  // Epochs' ends: seconds of each that was seen (validation and checkpoint),
  // and how many steps lie between two; none: not known.
  std::vector<double> epoch_ends;
  std::optional<double> epoch_steps;
  double closing = 0;  // seconds after the last of all
};
ProbeFigures probe_figures(const ProbeStory& story);

// How many epochs' ends a run of so many steps has; its own end is one.
double num_epoch_ends(const ProbeFigures& figures, double total_steps);
// Of one of them; none was seen: none.
std::optional<economics::Estimate> epoch_end_estimate(
    const ProbeFigures& figures);

// How many steps of such a run are past ones, as they were measured.
double past_of(const ProbeFigures& figures, double total_steps);

// The whole run: what is past as it was, the rest as the present phase, epochs'
// ends as those that were seen. `total` is over all steps; none when it is not
// known.
std::optional<economics::Work> whole_work(
    const ProbeFigures& figures,
    std::optional<double> total);

}  // namespace lockstep::commands
