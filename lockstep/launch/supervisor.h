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
#include "lockstep/launch/console.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/generation.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/launch/run_end.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/launch/verdict.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

struct RunRequest {
  Job job;
  RankPlan plan;
  std::vector<NodePlace> places;  // by node of the plan; local: may be empty
  // By rank, its index in the group; empty: that of its node. Shims are one a
  // rank.
  std::vector<size_t> members;
  os::Path trainer;
  std::string program;  // for the record
  int retries = 0;
  int first_generation = 0;  // above 0: a batch system started us again
  std::optional<Duration> timeout;
  std::optional<Money> price_per_hour;  // of all nodes together
  bool show_all = false;                // output of every rank
  os::Instant started;                  // when the command began
  CapTerms terms;                       // of rented machines
  int first_port = 0;  // for MASTER_PORT and the coordinator; 0: any free one
  int last_port = 0;
  // Whether a restart may leave out nodes that were lost. Slurm ends such a job
  // as a whole, and queues it again.
  bool restarts_after_loss = true;
  // By node: its machine may be taken away, which uses up no retry. Empty:
  // none.
  std::vector<bool> spot;
  // How long a restart then waits for a machine in its place; zero: it does
  // not.
  Duration replacement{};
  // How long a restart waits for nodes that were lost.
  Duration come_back = std::chrono::seconds(5);
};

struct RunOutcome {
  RunEnd end = RunEnd::kDone;
  std::string detail;  // one line for the user; empty when done
  std::optional<Failure> failure;
  int generation = 0;  // the last one
  Duration elapsed{};
  std::optional<Money> cost;
};

Result<RunOutcome> supervise(
    Launcher& launcher,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    StopSignals& signals,
    Console& console);

// The same on any group of nodes, whose places are in the request. A new
// generation has the nodes that are present then. The coordinator uses `key`.
// Nodes were set up before: `setup` is not run.
Result<RunOutcome> supervise(
    NodeGroup& nodes,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    const Key& key,
    StopSignals& signals,
    Console& console);

}  // namespace lockstep::launch
