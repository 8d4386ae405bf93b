#include "lockstep/launch/supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "lockstep/launch/ports.h"
#include "lockstep/launch/run_watch.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;

constexpr Duration kMostOrphanGrace = seconds(5);
constexpr Duration kReturnPatience = seconds(30);  // for the first node

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
        console_(console),
        coordinator_(coordinator),
        watch_(request, run, signals, console, coordinator) {}

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
      LOCKSTEP_TRY(watch_.start(
          0, make_setup(request_.job, whole_.places.front(), start_)));
      watch_.run_to_idle();
    }
    while (watch_.cause() == Cause::kNone) {
      LOCKSTEP_TRY(start_ranks());
      watch_.run_to_idle();
      if (!may_restart()) {
        break;
      }
      LOCKSTEP_TRY(restart());
    }
    watch_.show_rest();
    return finish();
  }

  // By us; a batch system may have made others.
  int restarts() const {
    return generation_.number - request_.first_generation;
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
    watch_.use(*nodes_);
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
    watch_.begin(generation_, start_.stop_signal);
    start_.coordinator_port = coordinator_.address().port;
    return {};
  }

  Result<void> start_ranks() {
    LOCKSTEP_ASSIGN(
        generation_, plan_generation(whole_, present(), generation_.number));
    tell_price_of_interruption();
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
      LOCKSTEP_TRY(watch_.start(node, request));
    }
    return {};
  }

  // Waits a little for nodes that were lost, and longer for the one without
  // which there is no next generation.
  bool may_restart() {
    if (watch_.is_interrupted() || watch_.is_given_up()) {
      return false;
    }
    if (was_taken_away()) {
      return wait_for_replacement();
    }
    if (watch_.cause() != Cause::kFailure ||
        restarts() - num_taken_ >= request_.retries) {
      return false;
    }
    if (coordinator_.failure()->lost && !request_.restarts_after_loss) {
      return false;
    }
    if (launcher_ != nullptr) {
      return true;
    }
    const os::Instant begun = os::real_clock().now();
    while (!watch_.is_interrupted()) {
      const std::vector<size_t> present = this->present();
      const bool enough = plan_generation(whole_, present, 0).has_value();
      const Duration waited = os::real_clock().now() - begun;
      if (!enough && waited >= kReturnPatience) {
        return false;
      }
      if (enough &&
          (present.size() == nodes_->size() || waited >= request_.come_back)) {
        break;
      }
      watch_.look();
    }
    return !watch_.is_interrupted();
  }

  // Without machines that are about to go.
  std::vector<size_t> present() const {
    std::vector<size_t> nodes = nodes_->present();
    std::erase_if(nodes, [&](size_t node) {
      const auto doomed = watch_.doomed().find(node);
      return doomed != watch_.doomed().end() &&
             doomed->second == nodes_->session(node);
    });
    return nodes;
  }

  // By the cloud, not by a fault of the job.
  bool was_taken_away() const {
    if (watch_.cause() == Cause::kTakenAway) {
      return true;
    }
    return watch_.cause() == Cause::kFailure && watch_.taken_at() &&
           coordinator_.failure()->lost;
  }

  // For the whole world again, as long as the terms say; then with what is
  // there. Whoever rents machines is told that these may go.
  bool wait_for_replacement() {
    const os::Instant begun = os::real_clock().now();
    for (const auto& [node, session] : watch_.doomed()) {
      if (session == nodes_->session(node)) {
        coordinator_.note(
            wire::Node{"leaving", "its ranks have ended"}, nodes_->host(node));
      }
    }
    watch_.flush();
    const Duration patience =
        std::max<Duration>(request_.replacement, request_.come_back);
    console_.say(
        fmt::format(
            "waiting up to {} for a machine in its place",
            format_duration(patience)));
    while (!watch_.is_interrupted() && !watch_.is_capped()) {
      const std::vector<size_t> nodes = present();
      const Duration waited = os::real_clock().now() - begun;
      const bool enough = plan_generation(whole_, nodes, 0).has_value();
      if (nodes.size() == nodes_->size() || (enough && waited >= patience)) {
        ++num_taken_;
        return true;
      }
      if (!enough && waited >= std::max<Duration>(patience, kReturnPatience)) {
        return false;
      }
      watch_.look();
    }
    return false;
  }

  // What the machine that was taken away cost: the time without ranks.
  void tell_price_of_interruption() {
    if (!interrupted_since_) {
      return;
    }
    const double lost =
        to_seconds(os::real_clock().now() - *interrupted_since_);
    std::string text = fmt::format("{:.0f} s without ranks", lost);
    if (request_.price_per_hour) {
      text += fmt::format(
          ", ${:.4f}", request_.price_per_hour->dollars() * lost / 3600);
    }
    text += fmt::format(
        "; {} of {} nodes go on",
        generation_.plan.nodes.size(),
        whole_.plan.nodes.size());
    console_.say("a machine was taken away: " + text);
    coordinator_.note(wire::Decision{"interruption", text});
    interrupted_since_.reset();
  }

  Result<void> restart() {
    if (was_taken_away()) {
      watch_.show_rest();
      ++generation_.number;
      interrupted_since_ = watch_.taken_at();
      coordinator_.note(
          wire::Decision{"restart", "a spot machine was taken away"});
      watch_.forget_cause();
      return {};
    }
    const Failure failure = *coordinator_.failure();
    if (launcher_ == nullptr) {
      // Of this generation, before its logs go on with the next.
      watch_.show_rest();
    } else if (failure.lost) {
      LOCKSTEP_TRY(find_nodes());
    }
    ++generation_.number;
    console_.say(
        fmt::format(
            "restart {} of {}", restarts() - num_taken_, request_.retries));
    coordinator_.note(wire::Decision{"restart", failure.to_string()});
    watch_.forget_cause();
    return {};
  }

  Result<RunOutcome> finish() {
    RunOutcome outcome;
    outcome.generation = generation_.number;
    owned_.reset();  // waits until the keeper is gone
    outcome.elapsed = watch_.elapsed();
    outcome.cost = watch_.cost();
    switch (watch_.cause()) {
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
      case Cause::kTakenAway:
        outcome.end = RunEnd::kLost;
        outcome.detail = "the cloud took its machines away";
        break;
      case Cause::kCap:
        outcome.end = RunEnd::kCapped;
        outcome.detail = "stopped by " + watch_.cap()->reason;
        break;
    }
    if (outcome.cost) {
      coordinator_.note(
          wire::Cost{
              outcome.cost->dollars(), request_.price_per_hour->dollars()});
    }
    watch_.flush();
    return outcome;
  }

  Launcher* launcher_;  // null: the group was given
  NodeGroup* nodes_;
  const RunRequest& request_;
  const record::RunDirectory& run_;
  RunStateFile& state_;
  Console& console_;
  Coordinator& coordinator_;
  std::unique_ptr<NodeGroup> owned_;
  StartFacts start_;
  Generation whole_;
  Generation generation_;  // that runs now
  RunWatch watch_;
  int num_taken_ = 0;  // restarts after machines that were taken away
  std::optional<os::Instant> interrupted_since_;
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
      Coordinator::open(
          os::real_files(),
          os::real_clock(),
          run,
          make_key(),
          EventMask(request.job)));
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
      Coordinator::open(
          os::real_files(),
          os::real_clock(),
          run,
          key,
          EventMask(request.job)));
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
