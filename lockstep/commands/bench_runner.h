#pragma once

// Runs the probes of `lockstep bench` side by side, each through a `lockstep
// run` of its own, reads their events as they come, and stops each as soon as
// the race says so. Ctrl-C, SIGTERM and SIGHUP stop all probes. No probe is
// left behind, whatever happens. One thread.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/commands/candidates.h"
#include "lockstep/commands/probe_story.h"
#include "lockstep/economics/race.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {
class StopSignals;
}

namespace lockstep::commands {

struct Probe {
  Candidate candidate;
  ProbeStory story;
  ProbeFigures figures;
  economics::Standing standing = economics::Standing::kRacing;
  std::string reason;  // of its end
  double started = 0;  // Unix seconds
  double setup = 0;    // from the start until ranks began; 0: they did not
  // What a run takes besides set-up, init and iterations, as its head saw it:
  // from its start until the first rank began, and from when the last rank
  // ended until all was told. 0: not known.
  double launch = 0;
  double end = 0;
  double first_news = 0;  // our own clock, when a rank was first heard
  double last_news = 0;   // and when an iteration was last heard
  double seconds = 0;     // of the whole probe
  double dollars = 0;     // of the whole probe; 0 without a price
  bool finished = false;  // the job ended, well, during its probe
  int exit_code = 0;
  os::Path run;     // run directory; empty: none was made
  os::Path events;  // from which every figure is computed
  os::Path log;     // of `lockstep run`
};

struct BenchRunnerOptions {
  os::Path program;                 // lockstep itself
  std::vector<std::string> words;   // JOB.yaml key=value ...
  std::vector<std::string> passed;  // further options of `lockstep run`
  os::Path folder;                  // of the bench
  economics::RaceOptions race;
  Duration patience = std::chrono::minutes(10);  // without an iteration
  bool quiet = false;
};

struct BenchOutcome {
  std::vector<Probe> probes;
  bool interrupted = false;
};
Result<BenchOutcome> run_probes(
    Candidates& candidates,
    const BenchRunnerOptions& options,
    launch::StopSignals& signals);

// What the race knows about the probes. They are compared over the steps that
// all who are still in it have seen, so that a warm-up or a phase counts on all
// sides or on none. Without a price on every candidate all count as equally
// dear: then only times are compared.
std::vector<economics::Racer>
as_racers(const std::vector<Probe>& probes, bool priced, double now);
// How many times the price of the same work the first is of the second, over
// the steps that both have seen; 0 when one has none.
double times_as_dear(const Probe& first, const Probe& second, bool priced);
bool all_priced(const std::vector<Candidate>& candidates);

}  // namespace lockstep::commands
