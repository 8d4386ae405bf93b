#pragma once

// Owns the group of ranks of a run: serves their rendezvous under the run's
// key, is the single writer of events.jsonl and timing.csv, keeps what the
// progress line shows, and holds the verdict. Fed with reports of agents, from
// whatever node; one thread, but for the rendezvous, which has its own.

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/live.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/launch/redaction.h"
#include "lockstep/launch/verdict.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/pending_file.h"
#include "lockstep/record/run_directory.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::launch {

class Coordinator {
 public:
  // The run directory is there; the key file is made in it. What `mask` hides
  // is in no event that is written, nor in what is told of a failure.
  static Result<std::unique_ptr<Coordinator>> open(
      os::FileSystem& files,
      const os::Clock& clock,
      const record::RunDirectory& run,
      const Key& key = make_key(),
      EventMask mask = {});
  // Removes the key file.
  ~Coordinator();

  // A fresh rendezvous at `address` and a fresh verdict; `program` for the
  // record. A port that is taken is an error.
  Result<void> begin_generation(
      os::Network& network,
      const os::Address& address,
      const std::string& program,
      int world_size);
  os::Address address() const;  // of the rendezvous
  const std::string& key_file() const { return key_file_; }

  // One report of the agent on `host`.
  Result<void> take(const Report& report, const std::string& host);
  // A rank hangs, and that ends the generation.
  void take(const Hang& hang) { verdict_.take(hang); }
  // The failure was told: no other replaces it.
  void settle() { verdict_.settle(); }
  // An event of the control side.
  void note(wire::EventBody body, const std::string& host = "");
  // Writes out what take() and note() gathered.
  Result<void> flush();

  const LiveState& live() const { return live_.state(); }
  const std::optional<Failure>& failure() const { return verdict_.failure(); }
  int world_size() const { return world_size_; }

 private:
  Coordinator(
      os::FileSystem& files,
      const os::Clock& clock,
      const record::RunDirectory& run);
  void write(const wire::Event& event);
  void take_event(const wire::Event& event);
  void take_exit(const RankExited& exit, const std::string& host);

  os::FileSystem& files_;
  const os::Clock& clock_;
  record::RunDirectory run_;
  EventMask mask_;
  std::string key_file_;
  Key key_{};
  std::unique_ptr<wire::RendezvousServer> rendezvous_;
  std::optional<record::PendingFile> events_, timing_;
  int world_size_ = 0;
  LiveTracker live_;
  Verdict verdict_;
  std::set<int> said_exit_;  // ranks that wrote their own exit event
};

}  // namespace lockstep::launch
