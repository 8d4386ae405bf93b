#pragma once

// state.json in a run directory: who runs it and how it ended. `lockstep run`
// writes it at the start, at a new generation and at the end; ps, stop and
// logs read it. A run whose process is gone without an end is "lost".

#include <optional>
#include <string>

#include "lockstep/base/result.h"
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
  double started = 0;      // Unix seconds
  double ended = 0;        // 0: not yet
  int exit_code = 0;
  int world_size = 0;
  int generation = 0;
  double dollars_per_hour = 0;  // 0: no price is known
  std::string command;          // that repeats it
  std::string program;          // what the ranks run
  std::string price_source;
};

Result<void> write_run_state(
    const record::RunDirectory& run,
    const RunStateFile& state);
// "running" is checked against the process table. None when the run was not
// made by `lockstep run`.
Result<std::optional<RunStateFile>> read_run_state(
    const record::RunDirectory& run);

}  // namespace lockstep::launch
