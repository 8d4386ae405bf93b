#pragma once

// state.json in a run directory: who runs it and how it ended. `lockstep run`
// writes it at the start, at a new generation and at the end; ps, stop and
// logs read it. A run whose process is gone without an end is "lost".

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

struct RunStateFile {
  std::string id;
  std::string name;
  std::string state;  // running done failed stopped capped timeout lost
  std::string detail;
  std::string host;  // that runs `lockstep run`
  int pid = 0;
  uint64_t pid_start = 0;  // with the pid: one process for good
  double started = 0;      // Unix seconds; later by the time back in a queue
  double ended = 0;        // 0: not yet
  int exit_code = 0;
  int world_size = 0;
  int generation = 0;
  double dollars_per_hour = 0;  // 0: no price is known
  double cost = 0;              // dollars of machines that were given back
  std::string cluster;  // whose machines it uses; empty: none of a cloud
  std::string outputs;  // where everything is stored besides
  std::string command;  // that repeats it
  std::string program;  // what the ranks run
  std::string price_source;
  std::string launcher = "local";  // local ssh mpi slurm
  // Where the run lives when that is not this machine: the host as ssh takes
  // it and the run directory there. Then this directory is a mirror.
  std::string head_host;
  std::string head_directory;
  bool incomplete = false;         // it ended, and not all that it left is here
  std::vector<std::string> hosts;  // of the nodes, as the user wrote them
  std::vector<std::string> ssh_options;  // with which they are reached
  std::string job_id;                    // of Slurm or of mpirun's process
  // Slurm: how often it had queued the job again when the head wrote this; -1:
  // no head did yet.
  int restarts = -1;
  // Slurm: this is how the run ended, whatever becomes of its job.
  bool settled = false;

  bool is_running() const { return state == "running"; }
  bool has_ended() const { return !is_running() && state != "queued"; }
  bool is_remote() const { return !head_host.empty(); }
};

Result<void> write_run_state(
    const record::RunDirectory& run,
    const RunStateFile& state);
// "running" is checked against the process table, unless it is a mirror,
// belongs to another host or to Slurm, which knows better (slurm_mirror.h).
// None when the run was not made by `lockstep run`.
Result<std::optional<RunStateFile>> read_run_state(
    const record::RunDirectory& run);

// The same as one text, for its way between machines.
std::string to_json(const RunStateFile& state);
Result<RunStateFile> parse_run_state(
    const std::string& text,
    const std::string& source);

// The last step that the end of events.jsonl tells; 0: none.
int64_t last_step(const record::RunDirectory& run);

// Asks the process that runs it to stop: gracefully, or `now`. False when it
// has ended already.
Result<bool> signal_run(const RunStateFile& state, bool now);
// True once that process is gone.
bool wait_until_ended(const RunStateFile& state, os::Deadline deadline);

}  // namespace lockstep::launch
