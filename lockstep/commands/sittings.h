#pragma once

// The sittings of a run whose machines change: one `lockstep run` at a time, on
// the nodes of a cluster, from the checkpoint of the one before. What they
// write becomes one run: events in the order in which they came, rows of
// metrics, checkpoints. One thread; no sitting is left when it is destroyed.

#include <memory>
#include <optional>
#include <utility>

#include "lockstep/commands/run_options.h"
#include "lockstep/commands/sights.h"
#include "lockstep/launch/job.h"
#include "lockstep/os/process.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {

class Sittings {
 public:
  // `job` without its machines and limits.
  Sittings(launch::Job job, record::RunDirectory run, int ranks_a_node);
  ~Sittings();
  Sittings(const Sittings&) = delete;
  Sittings& operator=(const Sittings&) = delete;

  // On all nodes of the cluster; `budget` is what is left of it.
  Result<void> start(
      const std::string& cluster,
      std::optional<Money> budget,
      std::optional<Duration> time);
  // Takes what is new; the exit code once the sitting has ended.
  Result<std::optional<int>> look();
  // Asks it to stop after a checkpoint, and waits; its exit code.
  Result<int> stop();

  // What came here from the machines of sittings that have ended, since this
  // was asked last.
  Bytes take_traffic() { return std::exchange(traffic_, Bytes{}); }
  // Of the present sitting; what it has not told, the ones before have.
  const Sights& sights() const { return sights_; }
  double started() const { return started_; }  // Unix seconds
  void note(wire::EventBody body);             // into the run's events

 private:
  os::Path root() const { return run_.path() / "sittings"; }
  Result<void> read_events();
  Result<int> finish(const os::ExitStatus& status);
  void collect();

  launch::Job job_;
  record::RunDirectory run_;
  int ranks_a_node_;
  Sights sights_;
  int number_ = 0;
  double started_ = 0;
  std::unique_ptr<os::Process> process_;
  std::unique_ptr<record::EventReader> reader_;
  std::optional<record::RunDirectory> sitting_;
  Bytes traffic_{};
  os::Path checkpoint_;  // that the next one goes on from; empty: none
};

}  // namespace lockstep::commands
