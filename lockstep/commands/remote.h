#pragma once

// What verbs share that look at runs on other machines: reaching their head,
// mirroring them, and showing a run to a person until it has ended.

#include <memory>

#include "lockstep/commands/command.h"
#include "lockstep/launch/follow.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/reach/session.h"

namespace lockstep::commands {

// With this program as what is sent; `ssh_options` of the job or its run.
reach::ReachOptions reach_options(std::vector<std::string> ssh_options);

// A mirror of a run on another machine; none for one on this machine. Nothing
// is reached yet. `session`: one that is open to its head already.
std::unique_ptr<launch::Mirror> mirror_of(
    const record::RunDirectory& run,
    const launch::RunStateFile& state,
    std::unique_ptr<reach::Session> session = nullptr);

// Shows a run that somebody else supervises to its end, brings its files here
// and prints its report; its exit code. Ctrl-C and SIGTERM stop it, twice kill
// it; when the terminal closes the run goes on.
struct Watch {
  launch::FollowOptions follow;
  OutputFormat format = OutputFormat::kTable;
  std::string first_line;  // shown before all else; may be empty
  // How long fetching what it left is tried, and whether that succeeded.
  Duration fetch_patience{};
  bool* is_fetched = nullptr;
  // How much of it may be fetched, asked when the run has ended; may be none.
  std::function<std::optional<Bytes>()> affordable;
  // Where the last state goes instead of a report, which is the caller's then.
  std::optional<launch::RunStateFile>* ended = nullptr;
};
Result<int> watch_run(
    const record::RunDirectory& run,
    launch::Mirror* mirror,
    launch::StopSignals& signals,
    const Watch& watch);

// A run that is over, to stdout.
void show_report(
    const record::RunDirectory& run,
    const launch::RunStateFile& state,
    OutputFormat format);

// state.json, completed by what Slurm says about a job of its own, or an error
// when the run was not made by `lockstep run`. That its rented machines are
// gone is written down.
Result<launch::RunStateFile> state_of(const record::RunDirectory& run);

}  // namespace lockstep::commands
