#pragma once

// Runs the repeats of a sweep one after the other, each through a `lockstep
// run` of its own, so that no crash of a repeat touches the sweep. Every end
// goes into the journal at once. Ctrl-C, SIGTERM and SIGHUP are passed on to
// the run; a run that a killed sweep left behind is stopped before the next.
// One thread.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/commands/sweep_journal.h"
#include "lockstep/commands/sweep_plan.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {
class StopSignals;
}

namespace lockstep::commands {

struct SweepRunnerOptions {
  os::Path program;  // lockstep itself
  std::string job_file;
  launch::Job job;
  std::vector<std::string> fixed;             // key=value for every run
  std::map<std::string, std::string> places;  // {key} for every run
  std::vector<std::string> options;           // passed on
  bool hosts_given = false;                   // then --nodes says how many
  int repeat = 1;
  std::optional<Money> budget;  // over all repeats of the journal
  bool quiet = false;
};

class SweepRunner {
 public:
  SweepRunner(SweepRunnerOptions options, SweepJournal& journal)
      : options_(std::move(options)), journal_(journal) {}

  // The command of a repeat, for a person.
  Result<std::string> shown_command(
      const Configuration& configuration,
      int number) const;

  // Until every configuration has its repeats or had its tries; `refresh` after
  // each. The exit code: 0; 1 or 3 when some failed; 4 by the budget; 130.
  // An error when `lockstep run` refuses the job: then no repeat can work.
  Result<int> run(
      const std::vector<Configuration>& grid,
      const std::function<Result<void>()>& refresh);

 private:
  struct Ended {
    bool interrupted = false;
    int code = 0;
    std::string how;  // when a signal ended it
    os::Path log;
  };
  Result<std::vector<std::string>> command(
      const Configuration& configuration,
      int number) const;
  Result<Ended> run_child(
      const std::vector<std::string>& argv,
      const os::Path& log,
      launch::StopSignals& signals) const;
  Result<Repeat> read_repeat(
      const Configuration& configuration,
      int number,
      const Ended& ended) const;
  Result<void> close_orphans();
  void say(const std::string& line) const;

  SweepRunnerOptions options_;
  SweepJournal& journal_;
};

// What a run tells about a repeat: the launcher's total, each rank's seconds
// of epoch 0, samples and cost. `ranks` is how many there must be.
Result<Repeat> read_run(const record::RunDirectory& run, int ranks);

}  // namespace lockstep::commands
