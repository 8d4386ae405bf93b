#pragma once

// What the events of a probe (or of any run) tell the economics: how long it
// took to be ready, each iteration as the slowest rank had it, where phases
// begin, how it ended. Events are taken one by one, in any order between ranks.
// Pure.

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
  std::optional<double> total_steps_;
};

// The story in numbers; `iterations` is none when nothing was seen.
struct ProbeFigures {
  std::optional<economics::IterationSummary> iterations;
  size_t seen = 0;              // steps
  std::vector<double> seconds;  // of each that has a time, in order
  // Steps before the present phase and what they took together.
  double past_steps = 0;
  double past_seconds = 0;
  double samples = 0;        // an iteration, all ranks
  double compute = 0;        // median of the present phase
  double communication = 0;  // likewise
  double init = 0;
  std::optional<double> total_steps;
};
ProbeFigures probe_figures(const ProbeStory& story);

// The whole run: what is past as it was, the rest as the present phase.
// `total` is over all steps; none when it is not known.
std::optional<economics::Work> whole_work(
    const ProbeFigures& figures,
    std::optional<double> total);

}  // namespace lockstep::commands
