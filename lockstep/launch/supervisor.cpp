#include "lockstep/launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/launch/agent_protocol.h"
#include "lockstep/launch/hang.h"
#include "lockstep/launch/ports.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLook = milliseconds(100);  // at output and events
constexpr Duration kCulpritWait = milliseconds(500);
constexpr Duration kOtherNodes = milliseconds(250);  // reports cross each other
constexpr Duration kFailureGrace = seconds(2);  // for ranks beside a failed one
constexpr Duration kKillPatience = seconds(10);  // SIGKILL to gone
constexpr Duration kMostOrphanGrace = seconds(10);
constexpr Duration kOutputPatience = seconds(10);
constexpr Duration kReturnPatience = seconds(30);  // for the first node

enum class Cause { kNone, kFailure, kInterrupt, kTimeout, kCap };

class Supervisor {
 public:
  // Either a launcher that makes the group, or the group itself.
  Supervisor(
      Launcher* launcher,
      NodeGroup* nodes,
      const RunRequest& request,
      const record::RunDirectory& run,
      RunStateFile& state,
      StopSignals& signals,
      Console& console,
      Coordinator& coordinator)
      : launcher_(launcher),
        nodes_(nodes),
        request_(request),
        run_(run),
        state_(state),
        signals_(signals),
        console_(console),
        coordinator_(coordinator),
        cap_(cap_of(request.job, request.price_per_hour)),
        hang_(request.job.hang.limit()) {}

  Result<RunOutcome> run() {
    Result<RunOutcome> outcome = run_generations();
    if (!outcome && nodes_ != nullptr) {
      nodes_->end(SIGKILL, Duration(0));
    }
    return outcome;
  }

 private:
  Result<RunOutcome> run_generations() {
    LOCKSTEP_ASSIGN(start_.stop_signal, parse_signal(request_.job.stop_signal));
    start_.run_id = run_.id();
    start_.max_restarts = request_.retries;
    generation_.number = request_.first_generation;
    start_.show_all = request_.show_all;
    start_.orphan_grace =
        std::min<Duration>(request_.job.grace, kMostOrphanGrace);
    whole_ = whole_generation(
        request_.plan,
        request_.places.empty() ? std::vector{own_place()} : request_.places,
        request_.members);
    LOCKSTEP_TRY(find_nodes());
    if (launcher_ != nullptr && !request_.job.setup.empty()) {
      LOCKSTEP_TRY(begin("setup", 1));
      LOCKSTEP_TRY(
          start_on(0, make_setup(request_.job, whole_.places.front(), start_)));
      run_to_idle();
    }
    while (cause_ == Cause::kNone) {
      LOCKSTEP_TRY(start_ranks());
      run_to_idle();
      if (!may_restart()) {
        break;
      }
      LOCKSTEP_TRY(restart());
    }
    show_rest();
    return finish();
  }

  // By us; a batch system may have made others.
  int restarts() const {
    return generation_.number - request_.first_generation;
  }

  Duration elapsed() const { return os::real_clock().now() - request_.started; }

  std::optional<Money> cost() const {
    if (!request_.price_per_hour) {
      return {};
    }
    return *request_.price_per_hour * (to_seconds(elapsed()) / 3600);
  }

  // This machine, when nobody said where things are.
  NodePlace own_place() const {
    NodePlace place;
    place.workdir = request_.job.workdir;
    place.trainer = request_.trainer;
    place.run_directory = std::filesystem::absolute(run_.path());
    place.folder = place.run_directory;
    place.key_file = std::filesystem::absolute(coordinator_.key_file());
    place.inherited = os::environment();
    place.head_address = launcher_ == nullptr ? "" : launcher_->head_address();
    return place;
  }

  Result<void> find_nodes() {
    if (launcher_ != nullptr) {
      owned_.reset();  // the last one ends what it has before the next begins
      LOCKSTEP_ASSIGN(owned_, launcher_->start_agents());
      nodes_ = owned_.get();
    }
    busy_.assign(nodes_->size(), false);
    return {};
  }

  Result<void> begin(const std::string& program, int world_size) {
    os::Address address;
    address.host = whole_.plan.nodes.size() > 1
                       ? "0.0.0.0"
                       : whole_.places.front().head_address;
    if (request_.first_port > 0) {
      LOCKSTEP_ASSIGN(
          const int port, free_port(request_.first_port, request_.last_port));
      address.port = static_cast<uint16_t>(port);
    }
    LOCKSTEP_TRY(coordinator_.begin_generation(
        os::real_network(), address, program, world_size));
    hang_.begin();
    start_.coordinator_port = coordinator_.address().port;
    return {};
  }

  Result<void> start_on(size_t node, const StartRequest& request) {
    LOCKSTEP_TRY(nodes_->start(node, request));
    busy_[node] = true;
    return {};
  }

  Result<void> start_ranks() {
    LOCKSTEP_ASSIGN(
        generation_,
        plan_generation(whole_, nodes_->present(), generation_.number));
    LOCKSTEP_TRY(begin(request_.program, generation_.plan.world_size()));
    LOCKSTEP_ASSIGN(
        start_.master_port, free_port(request_.first_port, request_.last_port));
    if (state_.world_size != generation_.plan.world_size() ||
        state_.generation != generation_.number) {
      state_.world_size = generation_.plan.world_size();
      state_.generation = generation_.number;
      LOCKSTEP_TRY(write_run_state(run_, state_));
    }
    LOCKSTEP_ASSIGN(
        const auto starts, make_starts(request_.job, generation_, start_));
    for (const auto& [node, request] : starts) {
      nodes_->readmit(node);
      coordinator_.note(wire::Node{"up", ""}, nodes_->host(node));
      LOCKSTEP_TRY(start_on(node, request));
    }
    return {};
  }

  // Waits a little for nodes that were lost, and longer for the one without
  // which there is no next generation.
  bool may_restart() {
    if (cause_ != Cause::kFailure || restarts() >= request_.retries ||
        interrupts_ > 0 || given_up_) {
      return false;
    }
    if (coordinator_.failure()->lost && !request_.restarts_after_loss) {
      return false;
    }
    if (launcher_ != nullptr) {
      return true;
    }
    const os::Instant begun = os::real_clock().now();
    while (interrupts_ == 0) {
      const std::vector<size_t> present = nodes_->present();
      const bool enough = plan_generation(whole_, present, 0).has_value();
      const Duration waited = os::real_clock().now() - begun;
      if (!enough && waited >= kReturnPatience) {
        return false;
      }
      if (enough &&
          (present.size() == nodes_->size() || waited >= request_.come_back)) {
        break;
      }
      wait_for_news(os::real_clock().now() + kLook);
      receive(true);
      note_signals();
    }
    return interrupts_ == 0;
  }

  Result<void> restart() {
    const Failure failure = *coordinator_.failure();
    if (launcher_ == nullptr) {
      show_rest();  // of this generation, before its logs go on with the next
    } else if (failure.lost) {
      LOCKSTEP_TRY(find_nodes());
    }
    ++generation_.number;
    console_.say(fmt::format("restart {} of {}", restarts(), request_.retries));
    coordinator_.note(wire::Decision{"restart", failure.to_string()});
    cause_ = Cause::kNone;
    return {};
  }

  // Serves the nodes until every one that was started is idle or lost.
  void run_to_idle() {
    gone_deadline_.reset();
    failed_.reset();
    auto next_look = os::real_clock().now() + kLook;
    while (any_busy()) {
      wait_for_news(next_look);
      const bool look = os::real_clock().now() >= next_look;
      if (look) {
        next_look = os::real_clock().now() + kLook;
      }
      receive(look);
      if (look) {
        note_hang();
      }
      note_failure();
      note_signals();
      note_time();
      if (look) {
        flush();
        console_.update(
            coordinator_.live(), coordinator_.world_size(), elapsed(), cost());
      }
      if (any_busy() && gone_deadline_ && gone_deadline_->passed()) {
        log_error("some processes do not end, even by SIGKILL");
        return;
      }
    }
    if (cause_ == Cause::kNone && coordinator_.failure()) {
      cause_ = Cause::kFailure;  // all ended by themselves meanwhile
      announce_failure();
    }
    flush();
  }

  bool any_busy() const {
    return std::ranges::find(busy_, true) != busy_.end();
  }

  // How many reports came.
  size_t receive(bool look) {
    const auto reports = nodes_->receive(look, console_.room());
    for (const auto& [node, report] : reports) {
      take(report, nodes_->host(node));
      if (std::holds_alternative<NodeIdle>(report) ||
          std::holds_alternative<NodeLost>(report)) {
        busy_[node] = false;
      }
    }
    return reports.size();
  }

  void wait_for_news(os::Instant next_look) {
    pollfd sources[] = {
        {signals_.descriptor(), POLLIN, 0}, {nodes_->descriptor(), POLLIN, 0}};
    Duration wait =
        std::max(Duration(0), Duration(next_look - os::real_clock().now()));
    if (request_.timeout && cause_ == Cause::kNone) {
      wait = std::min(wait, *request_.timeout - elapsed());
    }
    const auto whole =
        std::chrono::ceil<milliseconds>(std::max(Duration(0), wait));
    ::poll(sources, std::size(sources), static_cast<int>(whole.count()));
  }

  void take(const Report& report, const std::string& host) {
    if (const auto* output = std::get_if<RankOutput>(&report)) {
      console_.output(output->rank, redact(request_.job, output->line));
      return;
    }
    hang_.take(report, host, os::real_clock().now());
    warn(coordinator_.take(report, host));
  }

  void flush() { warn(coordinator_.flush()); }

  // The record of a run must not end the run; say so once.
  void warn(const Result<void>& result) {
    if (!result && !warned_) {
      warned_ = true;
      console_.say("warning: " + result.error().to_string());
    }
  }

  void end_ranks(Cause cause, int signal, Duration grace) {
    if (cause_ == Cause::kNone) {
      cause_ = cause;
    }
    nodes_->end(signal, grace);
    gone_deadline_ = os::Deadline::after(grace + kKillPatience);
  }

  void note_failure() {
    if (cause_ != Cause::kNone || !coordinator_.failure()) {
      return;
    }
    const Failure& failure = *coordinator_.failure();
    if (!failed_) {
      failed_ = os::real_clock().now();
    }
    // A rank that lost a peer may end before the peer has quite died, and its
    // report may come before that of the peer. While a node is away, that is
    // the likelier reason.
    Duration wait = failure.consequence                 ? kCulpritWait
                    : generation_.plan.nodes.size() > 1 ? kOtherNodes
                                                        : Duration(0);
    if (nodes_->any_away()) {
      wait = kLease;
    }
    if (failure.certain || os::real_clock().now() - *failed_ >= wait) {
      announce_failure();
      end_ranks(Cause::kFailure, SIGTERM, kFailureGrace);
    }
  }

  void note_hang() {
    if (cause_ != Cause::kNone || coordinator_.failure()) {
      return;
    }
    const HangNews news = hang_.look(os::real_clock().now());
    for (const int rank : news.inspect) {
      nodes_->inspect(generation_.members.at(static_cast<size_t>(rank)), rank);
    }
    if (!news.resumed.empty()) {
      console_.say(news.resumed);
      coordinator_.note(wire::Decision{"resumed", news.resumed});
    }
    if (!news.hang) {
      return;
    }
    const std::string& policy = request_.job.hang.policy;
    coordinator_.note(
        wire::Decision{"hang: " + policy, news.hang->to_string()});
    if (policy == "report") {
      std::string text = "lockstep: " + news.hang->to_string();
      for (const std::string& line : news.hang->details()) {
        text += "\n  | " + line;
      }
      console_.alarm(redact(request_.job, text));
      return;
    }
    given_up_ = policy == "stop";
    coordinator_.take(*news.hang);
  }

  // At once, while the other ranks are still being ended.
  void announce_failure() {
    coordinator_.settle();
    const Failure& failure = *coordinator_.failure();
    std::string text = "lockstep: " + failure.to_string();
    if (failure.hang) {
      for (const std::string& line : failure.last_lines) {
        text += "\n  | " + line;
      }
    } else if (!failure.last_lines.empty()) {
      const os::Path log = failure.rank == kSetupRank
                               ? run_.path() / "ranks" / "setup.log"
                               : run_.rank_log(failure.rank);
      text += fmt::format("\nlast lines of {}:", log.string());
      for (const std::string& line : failure.last_lines) {
        text += "\n  | " + line;
      }
    }
    console_.alarm(redact(request_.job, text));
  }

  void note_signals() {
    const int signal = signals_.take();
    if (signal == 0) {
      return;
    }
    ++interrupts_;
    if (interrupts_ == 1 && cause_ == Cause::kNone) {
      console_.say(
          fmt::format(
              "stopping: {} to the ranks, killed after {} (or a second Ctrl-C)",
              request_.job.stop_signal,
              format_duration(request_.job.grace)));
      end_ranks(Cause::kInterrupt, start_.stop_signal, request_.job.grace);
    } else {
      console_.say("killing the ranks");
      end_ranks(Cause::kInterrupt, SIGKILL, Duration(0));
    }
  }

  void note_time() {
    if (cause_ != Cause::kNone) {
      return;
    }
    if (request_.timeout && elapsed() >= *request_.timeout) {
      console_.say(
          fmt::format(
              "timeout after {}: stopping",
              format_duration(*request_.timeout)));
      end_ranks(Cause::kTimeout, start_.stop_signal, request_.job.grace);
    } else if (cap_ && elapsed() >= cap_->stop) {
      console_.say(fmt::format("{}: stopping", cap_->reason));
      coordinator_.note(wire::Decision{"stop", cap_->reason});
      end_ranks(
          Cause::kCap,
          start_.stop_signal,
          std::max(Duration(0), cap_->end - elapsed()));
    }
  }

  // Output that the console did not take yet, that is still on its way from a
  // node, and half lines.
  void show_rest() {
    size_t before = 0;
    os::Deadline patience = os::Deadline::after(kOutputPatience);
    while (true) {
      const size_t came = receive(true);
      const size_t left = nodes_->output_left();
      if (left == 0) {
        break;
      }
      if (came > 0 || left != before) {
        before = left;
        patience = os::Deadline::after(kOutputPatience);
      }
      if (patience.passed() || !console_.wait_for_room()) {
        console_.say(
            fmt::format(
                "{} of output are not shown here; see {}",
                format_bytes(Bytes{left}),
                (run_.path() / "ranks").string()));
        break;
      }
      if (came == 0) {
        pollfd news{nodes_->descriptor(), POLLIN, 0};
        ::poll(&news, 1, milliseconds(kLook).count());
      }
    }
    flush();
  }

  Result<RunOutcome> finish() {
    RunOutcome outcome;
    outcome.generation = generation_.number;
    owned_.reset();  // waits until the keeper is gone
    outcome.elapsed = elapsed();
    outcome.cost = cost();
    switch (cause_) {
      case Cause::kNone:
        break;
      case Cause::kFailure:
        outcome.failure = coordinator_.failure();
        outcome.end = outcome.failure->lost ? RunEnd::kLost : RunEnd::kFailed;
        outcome.detail = outcome.failure->to_string();
        break;
      case Cause::kInterrupt:
        outcome.end = RunEnd::kInterrupted;
        outcome.detail = "interrupted";
        break;
      case Cause::kTimeout:
        outcome.end = RunEnd::kTimeout;
        outcome.detail =
            fmt::format("timeout after {}", format_duration(*request_.timeout));
        break;
      case Cause::kCap:
        outcome.end = RunEnd::kCapped;
        outcome.detail = "stopped by " + cap_->reason;
        break;
    }
    if (outcome.cost) {
      coordinator_.note(
          wire::Cost{
              outcome.cost->dollars(), request_.price_per_hour->dollars()});
    }
    flush();
    return outcome;
  }

  Launcher* launcher_;  // null: the group was given
  NodeGroup* nodes_;
  const RunRequest& request_;
  const record::RunDirectory& run_;
  RunStateFile& state_;
  StopSignals& signals_;
  Console& console_;
  Coordinator& coordinator_;
  const std::optional<Cap> cap_;
  std::unique_ptr<NodeGroup> owned_;
  StartFacts start_;
  Generation whole_;
  Generation generation_;   // that runs now
  std::vector<bool> busy_;  // by node of the group
  Cause cause_ = Cause::kNone;
  int interrupts_ = 0;
  bool warned_ = false;
  std::optional<os::Deadline> gone_deadline_;
  std::optional<os::Instant> failed_;  // when the first failure came
  HangWatch hang_;
  bool given_up_ = false;  // no restart any more
};

}  // namespace

Result<RunOutcome> supervise(
    Launcher& launcher,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    StopSignals& signals,
    Console& console) {
  LOCKSTEP_ASSIGN(
      const auto coordinator,
      Coordinator::open(os::real_files(), os::real_clock(), run));
  return Supervisor(
             &launcher,
             nullptr,
             request,
             run,
             state,
             signals,
             console,
             *coordinator)
      .run();
}

Result<RunOutcome> supervise(
    NodeGroup& nodes,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    const Key& key,
    StopSignals& signals,
    Console& console) {
  LOCKSTEP_ASSIGN(
      const auto coordinator,
      Coordinator::open(os::real_files(), os::real_clock(), run, key));
  return Supervisor(
             nullptr,
             &nodes,
             request,
             run,
             state,
             signals,
             console,
             *coordinator)
      .run();
}

}  // namespace lockstep::launch
