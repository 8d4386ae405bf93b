#pragma once

// Where a run keeps what it made: runs/<id>/, laid out as docs/run_directory.md
// says. One writer: the coordinator, or rank 0 when there is none.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::record {

class RunDirectory {
 public:
  // Makes `root`/<id> with its folders. The error of an unwritable place
  // names it and says how to choose another.
  static Result<RunDirectory> create(
      const os::Path& root,
      std::string_view name);
  // One that a launcher made, or that exists already; what is absent is made.
  // Safe when several ranks do it at once.
  static Result<RunDirectory> open(const os::Path& path);
  // For readers: nothing is made, kNotFound when it is no run directory.
  static Result<RunDirectory> existing(const os::Path& path);

  // Before another run begins in it: removes what that one would append to, the
  // events of all ranks, metrics.csv, timing.csv and TensorBoard's files. Logs
  // and pictures stay until they are replaced; for checkpoints see below.
  Result<void> start_anew() const;
  // Whether there is anything that start_anew() removes.
  bool is_used() const;

  const os::Path& path() const { return path_; }
  std::string id() const { return path_.filename().string(); }
  os::Path job() const { return path_ / "job.yaml"; }
  os::Path events() const { return path_ / "events.jsonl"; }
  os::Path rank_log(int rank) const;
  os::Path rank_events(int rank) const;  // ranks/R.jsonl
  os::Path metrics() const { return path_ / "metrics.csv"; }
  os::Path timing() const { return path_ / "timing.csv"; }
  os::Path trace() const { return path_ / "trace.json"; }
  os::Path tensorboard() const { return path_ / "tensorboard"; }
  os::Path checkpoints() const { return path_ / "checkpoints"; }
  os::Path samples() const { return path_ / "samples"; }
  os::Path plots() const { return path_ / "plots"; }
  os::Path logbook() const { return path_ / "logbook.md"; }

 private:
  explicit RunDirectory(os::Path path) : path_(std::move(path)) {}
  std::vector<os::Path> appended() const;  // what runs add to, and is there
  os::Path path_;
};

// Before another run writes checkpoints to `folder`: the old ones become
// previous-last.safetensors and previous-best.safetensors, so that nobody
// resumes from another run's. A set of before is replaced by one of the kind.
Result<void> set_checkpoints_aside(const os::Path& folder);

// The runs under `root`, newest first. An absent root has none.
Result<std::vector<RunDirectory>> list_runs(const os::Path& root);

}  // namespace lockstep::record
