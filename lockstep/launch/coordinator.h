#pragma once

// Owns the group of ranks of a run: serves their rendezvous under the run's
// key, is the single writer of events.jsonl and timing.csv, keeps what the
// progress line shows, and holds the verdict. Fed with reports of agents, from
// whatever node; one thread, but for the rendezvous, which has its own.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/launch/verdict.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/pending_file.h"
#include "lockstep/record/run_directory.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::launch {

// What is known about a run while it goes on.
struct LiveState {
  int ranks_started = 0;
  int ranks_ended = 0;
  int64_t step = 0;
  int64_t total_steps = 0;  // 0: unknown
  int64_t epoch = 0;
  bool any_iteration = false;
  std::string phase;
  std::map<std::string, double> metrics;  // last values
  double samples_per_second = 0;          // over the last seconds, all ranks
  double seconds_per_step = 0;
};

class Coordinator {
 public:
  // The run directory is there; the key file is made in it.
  static Result<std::unique_ptr<Coordinator>> open(
      os::FileSystem& files,
      const os::Clock& clock,
      const record::RunDirectory& run);
  // Removes the key file.
  ~Coordinator();

  // A fresh rendezvous and verdict; `program` for the record.
  Result<void> begin_generation(
      os::Network& network,
      const std::string& head_address,
      const std::string& program,
      int world_size);
  std::string address() const;  // of the rendezvous
  const std::string& key_file() const { return key_file_; }

  // One report of the agent on `host`.
  Result<void> take(const Report& report, const std::string& host);
  // An event of the control side.
  void note(wire::EventBody body, const std::string& host = "");
  // Writes out what take() and note() gathered.
  Result<void> flush();

  const LiveState& live() const { return live_; }
  const std::optional<Failure>& failure() const { return verdict_.failure(); }
  int world_size() const { return world_size_; }

 private:
  Coordinator(
      os::FileSystem& files,
      const os::Clock& clock,
      const record::RunDirectory& run);
  void take_event(const wire::Event& event);
  void take_iteration(const wire::Event& event, const wire::Iteration& done);
  void take_exit(const RankExited& exit, const std::string& host);

  struct Sample {
    double time = 0;
    int64_t samples = 0;
  };

  os::FileSystem& files_;
  const os::Clock& clock_;
  record::RunDirectory run_;
  std::string key_file_;
  Key key_{};
  std::unique_ptr<wire::RendezvousServer> rendezvous_;
  std::optional<record::PendingFile> events_, timing_;
  int world_size_ = 0;
  LiveState live_;
  Verdict verdict_;
  std::set<int> said_exit_;     // ranks that wrote their own exit event
  std::deque<Sample> window_;   // of iterations, for the rate
  int64_t window_samples_ = 0;  // of all but its first
  std::map<int, std::pair<int64_t, double>> last_step_;  // step, time by rank
};

}  // namespace lockstep::launch
