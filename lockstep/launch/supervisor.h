#pragma once

// Runs a job to its end on the nodes of a launcher: set-up, ranks, restarts,
// caps of time and money, the user's Ctrl-C. It waits in poll() on agents and
// signals; nothing on the way from command to ranks sleeps. Every path out of
// it leaves no process behind.

#include <optional>
#include <string>
#include <vector>

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

class Console;
class NodeGroup;

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

// Where one node keeps what its ranks need, as paths there, and how it reaches
// the head. Interfaces and cores of a node are in the plan.
struct NodePlace {
  os::Path workdir;
  os::Path trainer;        // empty when the job is another program
  os::Path run_directory;  // LOCKSTEP_RUN_DIR: runs/<id> on the head
  os::Path folder;         // ranks/R.log and ranks/R.jsonl are made below it
  os::Path key_file;       // LOCKSTEP_KEY_FILE: <folder>/.key of an agent
  Environment inherited;   // PATH, HOME, ... of that node
  Environment envs;        // of this node alone, over the job's
  // MASTER_ADDR, and the host of LOCKSTEP_COORDINATOR. The coordinator listens
  // on 0.0.0.0 when there is more than one node.
  std::string head_address;
};

struct RunRequest {
  Job job;
  RankPlan plan;
  std::vector<NodePlace> places;  // by node of the plan
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

// The same on any group of nodes. A node that is lost and comes back is used
// by the next generation when `nodes` is a Hub. The coordinator uses `key`.
Result<RunOutcome> supervise(
    NodeGroup& nodes,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    const Key& key,
    StopSignals& signals,
    Console& console);

}  // namespace lockstep::launch
