#pragma once

// The loop of a supervisor while ranks run: it takes what nodes report, names
// who failed or hangs, ends the ranks when one failed, the user or the clock
// says so, and shows output and progress. The supervisor starts ranks through
// it and decides what follows. One thread.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/generation.h"
#include "lockstep/launch/hang.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {

// Why a generation was ended before its time.
enum class Cause { kNone, kFailure, kInterrupt, kTimeout, kCap, kTakenAway };

class RunWatch {
 public:
  RunWatch(
      const RunRequest& request,
      const record::RunDirectory& run,
      StopSignals& signals,
      Console& console,
      Coordinator& coordinator);

  // Watches this group from now on; none of its nodes is busy.
  void use(NodeGroup& nodes);
  // `generation` outlives what is started next.
  void begin(const Generation& generation, int stop_signal);
  Result<void> start(size_t node, const StartRequest& request);
  // Serves the nodes until every one that was started is idle or lost, or does
  // not end even by SIGKILL.
  void run_to_idle();
  // Takes news for a moment, while nothing runs.
  void look();
  // Output that the console did not take yet, that is still on its way from a
  // node, and half lines.
  void show_rest();
  void flush();

  Cause cause() const { return cause_; }
  void forget_cause() {
    cause_ = Cause::kNone;
    taken_at_.reset();
  }
  bool is_interrupted() const { return interrupts_ > 0; }
  // Nodes whose machines are about to be taken away, or were, by the session
  // that was told so.
  const std::map<size_t, std::string>& doomed() const { return doomed_; }
  bool is_spot(size_t node) const {
    return node < request_.spot.size() && request_.spot[node];
  }
  // When the first machine of this generation was known to go; none: all stay.
  const std::optional<os::Instant>& taken_at() const { return taken_at_; }
  bool is_given_up() const { return given_up_; }  // no restart any more
  const std::optional<Cap>& cap() const { return cap_; }
  bool is_capped() const;    // its time or money is over
  Duration elapsed() const;  // since the command began
  std::optional<Money> cost() const;

 private:
  bool any_busy() const;
  size_t receive(bool look);  // how many reports came
  void wait_for_news(os::Instant next_look);
  void take(const Report& report, const std::string& host);
  void warn(const Result<void>& result);
  void end_ranks(Cause cause, int signal, Duration grace);
  Duration settling_time(const Failure& failure) const;
  void note_doom(size_t node, const Report& report);
  void note_failure();
  void note_hang();
  void announce_failure();
  void note_signals();
  void note_time();
  void note_cost();
  void note_traffic();
  void note_directory();

  const RunRequest& request_;
  const record::RunDirectory& run_;
  StopSignals& signals_;
  Console& console_;
  Coordinator& coordinator_;
  std::optional<Cap> cap_;
  Bytes stored_{};  // in the run directory
  Duration next_traffic_{};
  NodeGroup* nodes_ = nullptr;
  const Generation* generation_ = nullptr;
  int stop_signal_ = 15;
  std::vector<bool> busy_;  // by node of the group
  Cause cause_ = Cause::kNone;
  int interrupts_ = 0;
  bool warned_ = false;
  int missing_looks_ = 0;  // at the run's directory, one after the other
  std::optional<os::Deadline> gone_deadline_;
  std::optional<os::Instant> failed_;  // when the first failure came
  HangWatch hang_;
  Duration next_cost_ = std::chrono::minutes(1);
  bool given_up_ = false;
  std::map<size_t, std::string> doomed_;
  std::optional<os::Instant> taken_at_;
};

}  // namespace lockstep::launch
