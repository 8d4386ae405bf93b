#pragma once

// The kinds of `lockstep run`, one function each: on this machine, on this
// machine but left alone, on other hosts, by mpirun on this machine, by Slurm.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/commands/replacements.h"
#include "lockstep/commands/run_options.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/hosts.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/stop_signals.h"

namespace lockstep::commands {

// Machines that a run uses and that cost by the hour; none of it is the
// launcher's business but when to end.
struct Rented {
  std::string cluster;
  double since = 0;  // Unix seconds: from when they cost
  launch::CapTerms terms;
  std::function<void()> give_back;  // Ctrl-C before the run began; may be none
  // Machines that may be taken away, by node, how long a run waits for another
  // in the place of one, and who rents it (replacements.h); may be none.
  std::set<std::string> spot;
  Duration replacement{};
  std::function<Result<bool>(const std::string& node, const Absence& absence)>
      rent;
  std::function<void()> stop_renting;
  // Of the renter on the head (renter.h), with the cluster's key: it rents
  // while this machine is away. Empty: nobody does then.
  std::string renter;
  // Whether it may be the head's turn to rent; may be none.
  std::function<bool()> is_heads_turn;
  // Why that node will never answer again; empty: it may. May be none.
  std::function<std::string(const std::string& node)> gone;
  // The run has a life of its own from here on.
  std::function<void(const record::RunDirectory&)> began;
  std::optional<record::RunDirectory> run;
  bool is_fetched = false;  // its directory is here, whole
  // Its last state. Who gives the machines back prints the report: what they
  // came to is known only then.
  bool reports = false;
  std::optional<launch::RunStateFile> ended;
};

struct RunOrder {
  const RunOptions& options;
  const Context& context;
  Settings settings;
  ResolvedJob priced;
  std::vector<launch::HostSlots> hosts;  // empty: this machine
  Rented* rented = nullptr;              // none: nobody counts the time
  // Where the directory of the run is told; none: nobody asks.
  std::optional<record::RunDirectory>* made = nullptr;
  void tell(const record::RunDirectory& run) const {
    if (made != nullptr) {
      *made = run;
    }
  }
};

Result<int> run_local(const RunOrder& order);
Result<int> run_detached(const RunOrder& order);
// By agents (ssh), or by mpirun.
Result<int> run_on_hosts(const RunOrder& order, const std::string& launcher);
Result<int> run_local_mpi(const RunOrder& order);
Result<int> run_on_slurm(const RunOrder& order);
// On machines that are rented for it and given back, and on those of a cluster
// that is up.
Result<int> run_on_cloud(const RunOrder& order, const std::string& launcher);
Result<int> run_on_cluster(const RunOrder& order, const std::string& launcher);

// A job file with `compare: {name: FILE, ...}` runs those job files one after
// the other, each by a `lockstep run` of its own with the same further words,
// and writes one logbook over them. The exit code of the first that failed.
// What it rents is priced and asked for once, before the first.
bool is_comparison(const std::string& file);
Result<int> run_comparison(const RunOptions& options, const Context& context);

// Orders for a head, without nodes and price.
launch::HeadSpec first_spec(
    const RunOrder& order,
    const record::RunDirectory& run,
    const std::string& launcher,
    const std::vector<std::string>& argv);
// Starts a head on this machine and shows the run to its end, unless it is
// detached.
Result<int> watch_local_head(
    const RunOrder& order,
    const record::RunDirectory& run,
    const launch::HeadSpec& spec,
    const std::string& first_line,
    launch::StopSignals& signals);

// lockstep-train when the job has a `train` section, else empty. In a container
// the image has its own, so that none need be here.
Result<os::Path> find_trainer(const launch::Job& job);
// What a person reads after --detach.
void print_detached(
    const record::RunDirectory& run,
    const Settings& settings,
    OutputFormat format);

}  // namespace lockstep::commands
