#pragma once

// `--launcher slurm`: the run is a batch job. On the first node of the
// allocation the batch script becomes `lockstep head`, which starts a shim for
// each rank by srun. The run directory, the workdir and the programs must lie
// on a file system that all nodes share under the same name; nothing is copied.
// A job always has a time limit. What the head must know, the key included,
// stands in a file of mode 0600 in the run directory.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/shims.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// Without max_duration and timeout.
inline constexpr Duration kSlurmTimeLimit = std::chrono::hours(24);

struct SlurmBatch {
  std::string name;
  int nodes = 1;
  int procs = 1;
  Duration limit{};
  Duration grace{};
  SlurmConfig config;
  os::Path program;  // lockstep
  os::Path folder;   // slurm/ of the run directory
  os::Path workdir;
};

// max_duration, else timeout, else the default, with time to end in.
Duration slurm_limit(const Job& job, std::optional<Duration> timeout);
// "1-02:03:04", rounded up to minutes as Slurm does.
std::string slurm_time(Duration limit);
// The script that sbatch takes. Pure.
std::string batch_script(const SlurmBatch& batch);

// Writes job.sh and the head's orders, and queues it; the job's id. An error is
// sbatch's own.
Result<std::string> submit(const SlurmBatch& batch, const std::string& orders);

// A job as Slurm tells; none when it does not know it (any more).
struct SlurmState {
  std::string state;       // "PENDING", "RUNNING", "COMPLETING", "FAILED", ...
  std::string reason;      // why it waits: "Resources"
  int restarts = 0;        // how often it was queued again
  bool preempted = false;  // told to make room for another job
  bool waits() const;      // for nodes, the first time or again
  bool has_ended() const;
};
// "PENDING  1  N/A  BeginTime": as slurm_state asks for it. Pure.
std::optional<SlurmState> parse_slurm_state(const std::string& line);
Result<std::optional<SlurmState>> slurm_state(const std::string& job_id);

// The stop signal to the head, or the end of the whole job.
Result<void> slurm_stop(const std::string& job_id, bool now);
// Ends the job's processes and puts it into the queue again. An error is
// Slurm's own: the job or the cluster may forbid it.
Result<void> slurm_requeue(const std::string& job_id);

// In the batch job: the hosts of the allocation, in the order of ranks, and how
// often it was requeued.
Result<std::vector<std::string>> allocated_hosts();
int slurm_restarts();
std::string slurm_job();  // its id; empty outside of one

// srun, inside the allocation.
std::unique_ptr<ShimStarter> make_srun_starter(os::Path program);

}  // namespace lockstep::launch
