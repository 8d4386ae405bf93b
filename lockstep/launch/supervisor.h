#pragma once

// Runs a job to its end on the nodes of a launcher: set-up, ranks, restarts,
// caps of time and money, the user's Ctrl-C. It waits in poll() on agents and
// signals; nothing on the way from command to ranks sleeps. Every path out of
// it leaves no process behind.

#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/progress.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/verdict.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// SIGINT, SIGTERM and SIGHUP as a descriptor. Make it before any thread: it
// blocks them for the process. One that is ignored (nohup) stays so.
class StopSignals {
 public:
  StopSignals();
  int descriptor() const { return descriptor_.get(); }
  // The last signal that came since the last call; 0: none.
  int take();

 private:
  os::Descriptor descriptor_;
};

struct RunRequest {
  Job job;
  RankPlan plan;
  os::Path trainer;
  std::string program;  // for the record
  int retries = 0;
  std::optional<Duration> timeout;
  std::optional<Money> price_per_hour;  // of all nodes together
  bool show_all = false;                // output of every rank
  os::Instant started;                  // when the command began
};

enum class RunEnd { kDone, kFailed, kLost, kCapped, kTimeout, kInterrupted };

struct RunOutcome {
  RunEnd end = RunEnd::kDone;
  std::string detail;  // one line for the user; empty when done
  std::optional<Failure> failure;
  int generation = 0;  // the last one
  Duration elapsed{};
  std::optional<Money> cost;
};

// 0, 1, 3, 4, 124, 130.
int exit_code(RunEnd end);
// "done", "failed", "lost", "capped", "timeout", "stopped".
std::string to_string(RunEnd end);

// The hard end of a run by max_duration and budget, from its start: when to
// ask the ranks to stop, and when nothing may run any more. Pure.
struct Cap {
  Duration stop{};
  Duration end{};
  std::string reason;  // "max_duration 4h", "budget $20"
};
std::optional<Cap> cap_of(const Job& job, std::optional<Money> price_per_hour);

Result<RunOutcome> supervise(
    Launcher& launcher,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    StopSignals& signals,
    Progress& progress);

}  // namespace lockstep::launch
