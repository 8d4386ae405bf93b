#include "lockstep/launch/supervisor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>

#include "lockstep/base/log.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(100);  // at output and events
constexpr Duration kCulpritWait = milliseconds(500);
constexpr Duration kFailureGrace = seconds(2);  // for ranks beside a failed one
constexpr Duration kKillPatience = seconds(10);  // SIGKILL to gone
constexpr Duration kMostOrphanGrace = seconds(10);

// A port that is free now, for MASTER_PORT: whoever listens there comes later.
Result<int> free_port(const std::string& address) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  ::inet_pton(AF_INET, address.c_str(), &place.sin_addr);
  const os::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof place;
  auto* generic = reinterpret_cast<sockaddr*>(&place);
  if (!socket || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    return os_error("cannot find a free port", errno);
  }
  return ntohs(place.sin_port);
}

enum class Cause { kNone, kFailure, kInterrupt, kTimeout, kCap };

class Supervisor {
 public:
  Supervisor(
      Launcher& launcher,
      const RunRequest& request,
      const record::RunDirectory& run,
      RunStateFile& state,
      StopSignals& signals,
      Progress& progress,
      Coordinator& coordinator)
      : launcher_(launcher),
        request_(request),
        run_(run),
        state_(state),
        signals_(signals),
        progress_(progress),
        coordinator_(coordinator),
        cap_(cap_of(request.job, request.price_per_hour)) {}

  Result<RunOutcome> run() {
    LOCKSTEP_ASSIGN(const int stop, parse_signal(request_.job.stop_signal));
    stop_signal_ = stop;
    LOCKSTEP_ASSIGN(agents_, launcher_.start_agents());
    if (!request_.job.setup.empty()) {
      LOCKSTEP_TRY(begin("setup", 1));
      LOCKSTEP_TRY(start_setup());
      run_to_idle();
    }
    while (cause_ == Cause::kNone) {
      LOCKSTEP_TRY(begin(request_.program, request_.plan.world_size()));
      LOCKSTEP_TRY(start_ranks());
      run_to_idle();
      if (cause_ != Cause::kFailure || generation_ >= request_.retries ||
          interrupts_ > 0) {
        break;
      }
      LOCKSTEP_TRY(restart());
    }
    show_rest();
    return finish();
  }

 private:
  Duration elapsed() const { return os::real_clock().now() - request_.started; }

  std::optional<Money> cost() const {
    if (!request_.price_per_hour) {
      return {};
    }
    return *request_.price_per_hour * (to_seconds(elapsed()) / 3600);
  }

  Result<void> begin(const std::string& program, int world_size) {
    return coordinator_.begin_generation(
        os::real_network(), launcher_.head_address(), program, world_size);
  }

  Duration orphan_grace() const {
    return std::min<Duration>(request_.job.grace, kMostOrphanGrace);
  }

  Result<void> start_setup() {
    StartRequest start;
    start.stop_signal = stop_signal_;
    start.orphan_grace = orphan_grace();
    RankCommand command;
    command.rank = kSetupRank;
    command.argv = {"bash", "-c", request_.job.setup};
    command.environment = without_launchers(os::environment());
    for (const auto* wanted :
         {&request_.job.envs, &request_.job.secret_values}) {
      for (const auto& [name, value] : *wanted) {
        command.environment[name] = value;
      }
    }
    command.directory = request_.job.workdir;
    command.log = run_.path() / "ranks" / "setup.log";
    command.show = true;
    start.commands.push_back(std::move(command));
    return agents_.front()->start(start);
  }

  Result<void> start_ranks() {
    LOCKSTEP_ASSIGN(const int port, free_port(launcher_.head_address()));
    LOCKSTEP_ASSIGN(
        const std::vector<std::string> argv,
        job_command(request_.job, request_.trainer, generation_));
    GenerationFacts facts;
    facts.run_id = run_.id();
    facts.run_directory = std::filesystem::absolute(run_.path()).string();
    facts.master_address = launcher_.head_address();
    facts.master_port = port;
    facts.coordinator = coordinator_.address();
    facts.key_file =
        std::filesystem::absolute(coordinator_.key_file()).string();
    facts.generation = generation_;
    facts.max_restarts = request_.retries;
    Environment wanted = request_.job.envs;
    wanted.insert(
        request_.job.secret_values.begin(), request_.job.secret_values.end());
    const Environment inherited = os::environment();
    std::vector<StartRequest> starts(agents_.size());
    for (const RankSlot& slot : request_.plan.slots) {
      RankCommand command;
      command.rank = slot.rank;
      command.argv = argv;
      command.environment =
          rank_environment(request_.plan, slot, facts, inherited, wanted);
      command.directory = request_.job.workdir;
      command.log = std::filesystem::absolute(run_.rank_log(slot.rank));
      command.events = std::filesystem::absolute(run_.rank_events(slot.rank));
      command.show = slot.rank == 0 || request_.show_all;
      if (slot.rank == 0) {
        command.iteration_pattern = request_.job.iterations.pattern;
        command.epoch_pattern = request_.job.epochs.pattern;
      }
      starts[static_cast<size_t>(slot.node)].commands.push_back(
          std::move(command));
    }
    for (size_t node = 0; node < agents_.size(); ++node) {
      starts[node].stop_signal = stop_signal_;
      starts[node].orphan_grace = orphan_grace();
      coordinator_.note(wire::Node{"up", ""}, agents_[node]->host());
      LOCKSTEP_TRY(agents_[node]->start(starts[node]));
    }
    return {};
  }

  Result<void> restart() {
    ++generation_;
    const std::string text = coordinator_.failure()->to_string();
    progress_.say(
        fmt::format("restart {} of {}", generation_, request_.retries));
    coordinator_.note(wire::Decision{"restart", text});
    state_.generation = generation_;
    LOCKSTEP_TRY(write_run_state(run_, state_));
    cause_ = Cause::kNone;
    if (coordinator_.failure()->lost) {
      agents_.clear();
      LOCKSTEP_ASSIGN(agents_, launcher_.start_agents());
    }
    return {};
  }

  // Serves the agents until every one is idle or lost.
  void run_to_idle() {
    size_t busy = agents_.size();
    gone_deadline_.reset();
    culprit_deadline_.reset();
    auto next_look = os::real_clock().now() + kLook;
    while (busy > 0) {
      wait_for_news(next_look);
      const bool look = os::real_clock().now() >= next_look;
      if (look) {
        next_look = os::real_clock().now() + kLook;
      }
      for (const auto& agent : agents_) {
        for (const Report& report : agent->receive(look, progress_.room())) {
          take(report, agent->host());
          if (std::holds_alternative<NodeIdle>(report) ||
              std::holds_alternative<NodeLost>(report)) {
            --busy;
          }
        }
      }
      note_failure();
      note_signals();
      note_time();
      if (look) {
        flush();
        progress_.update(
            coordinator_.live(), coordinator_.world_size(), elapsed(), cost());
      }
      if (busy > 0 && gone_deadline_ && gone_deadline_->passed()) {
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

  void wait_for_news(os::Instant next_look) {
    std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
    for (const auto& agent : agents_) {
      sources.push_back({agent->descriptor(), POLLIN, 0});
    }
    Duration wait =
        std::max(Duration(0), Duration(next_look - os::real_clock().now()));
    if (request_.timeout && cause_ == Cause::kNone) {
      wait = std::min(wait, *request_.timeout - elapsed());
    }
    const auto whole =
        std::chrono::ceil<milliseconds>(std::max(Duration(0), wait));
    ::poll(sources.data(), sources.size(), static_cast<int>(whole.count()));
  }

  void take(const Report& report, const std::string& host) {
    if (const auto* output = std::get_if<RankOutput>(&report)) {
      progress_.output(output->rank, redact(request_.job, output->line));
      return;
    }
    warn(coordinator_.take(report, host));
  }

  void flush() { warn(coordinator_.flush()); }

  // The record of a run must not end the run; say so once.
  void warn(const Result<void>& result) {
    if (!result && !warned_) {
      warned_ = true;
      progress_.say("warning: " + result.error().to_string());
    }
  }

  void end_ranks(Cause cause, int signal, Duration grace) {
    if (cause_ == Cause::kNone) {
      cause_ = cause;
    }
    for (const auto& agent : agents_) {
      (void)agent->end(signal, grace).has_value();
    }
    gone_deadline_ = os::Deadline::after(grace + kKillPatience);
  }

  void note_failure() {
    if (cause_ != Cause::kNone || !coordinator_.failure()) {
      return;
    }
    // A rank that lost a peer may end before the peer has quite died.
    if (!culprit_deadline_) {
      culprit_deadline_ = os::Deadline::after(kCulpritWait);
    }
    if (!coordinator_.failure()->consequence || culprit_deadline_->passed()) {
      announce_failure();
      end_ranks(Cause::kFailure, SIGTERM, kFailureGrace);
    }
  }

  // At once, while the other ranks are still being ended.
  void announce_failure() {
    const Failure& failure = *coordinator_.failure();
    std::string text = "lockstep: " + failure.to_string();
    if (!failure.last_lines.empty()) {
      const os::Path log = failure.rank == kSetupRank
                               ? run_.path() / "ranks" / "setup.log"
                               : run_.rank_log(failure.rank);
      text += fmt::format("\nlast lines of {}:", log.string());
      for (const std::string& line : failure.last_lines) {
        text += "\n  | " + line;
      }
    }
    progress_.alarm(redact(request_.job, text));
  }

  void note_signals() {
    const int signal = signals_.take();
    if (signal == 0) {
      return;
    }
    ++interrupts_;
    if (interrupts_ == 1 && cause_ == Cause::kNone) {
      progress_.say(
          fmt::format(
              "stopping: {} to the ranks, killed after {} (or a second Ctrl-C)",
              request_.job.stop_signal,
              format_duration(request_.job.grace)));
      end_ranks(Cause::kInterrupt, stop_signal_, request_.job.grace);
    } else {
      progress_.say("killing the ranks");
      end_ranks(Cause::kInterrupt, SIGKILL, Duration(0));
    }
  }

  void note_time() {
    if (cause_ != Cause::kNone) {
      return;
    }
    if (request_.timeout && elapsed() >= *request_.timeout) {
      progress_.say(
          fmt::format(
              "timeout after {}: stopping",
              format_duration(*request_.timeout)));
      end_ranks(Cause::kTimeout, stop_signal_, request_.job.grace);
    } else if (cap_ && elapsed() >= cap_->stop) {
      progress_.say(fmt::format("{}: stopping", cap_->reason));
      coordinator_.note(wire::Decision{"stop", cap_->reason});
      end_ranks(
          Cause::kCap,
          stop_signal_,
          std::max(Duration(0), cap_->end - elapsed()));
    }
  }

  // Output that the terminal did not take yet, and half lines.
  void show_rest() {
    bool again = true;
    while (again) {
      again = false;
      size_t left = 0;
      for (const auto& agent : agents_) {
        for (const Report& report : agent->receive(true, progress_.room())) {
          take(report, agent->host());
        }
        left += agent->output_left();
      }
      again = left > 0 && progress_.wait_for_room();
      if (left > 0 && !again) {
        progress_.say(
            fmt::format(
                "{} of output are not shown here; see {}",
                format_bytes(Bytes{left}),
                (run_.path() / "ranks").string()));
      }
    }
    flush();
  }

  Result<RunOutcome> finish() {
    RunOutcome outcome;
    outcome.generation = generation_;
    agents_.clear();  // waits until the keeper is gone
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

  Launcher& launcher_;
  const RunRequest& request_;
  const record::RunDirectory& run_;
  RunStateFile& state_;
  StopSignals& signals_;
  Progress& progress_;
  Coordinator& coordinator_;
  const std::optional<Cap> cap_;
  std::vector<std::unique_ptr<Agent>> agents_;
  Cause cause_ = Cause::kNone;
  int stop_signal_ = SIGTERM;
  int generation_ = 0;
  int interrupts_ = 0;
  bool warned_ = false;
  std::optional<os::Deadline> gone_deadline_;
  std::optional<os::Deadline> culprit_deadline_;
};

}  // namespace

StopSignals::StopSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action{};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      sigaddset(&handled, number);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  descriptor_ =
      os::Descriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
}

int StopSignals::take() {
  int last = 0;
  signalfd_siginfo info{};
  if (::read(descriptor_.get(), &info, sizeof info) == sizeof info) {
    last = static_cast<int>(info.ssi_signo);
  }
  return last;
}

int exit_code(RunEnd end) {
  switch (end) {
    case RunEnd::kDone:
      return 0;
    case RunEnd::kFailed:
      return 1;
    case RunEnd::kLost:
      return 3;
    case RunEnd::kCapped:
      return 4;
    case RunEnd::kTimeout:
      return 124;
    case RunEnd::kInterrupted:
      return 130;
  }
  return 1;
}

std::string to_string(RunEnd end) {
  switch (end) {
    case RunEnd::kDone:
      return "done";
    case RunEnd::kFailed:
      return "failed";
    case RunEnd::kLost:
      return "lost";
    case RunEnd::kCapped:
      return "capped";
    case RunEnd::kTimeout:
      return "timeout";
    case RunEnd::kInterrupted:
      return "stopped";
  }
  return "failed";
}

std::optional<Cap> cap_of(const Job& job, std::optional<Money> price_per_hour) {
  std::optional<Cap> cap;
  if (job.max_duration) {
    cap =
        Cap{{},
            *job.max_duration,
            "max_duration " + format_duration(*job.max_duration)};
  }
  if (job.budget && price_per_hour && price_per_hour->nanos() > 0) {
    const Duration end =
        from_seconds(job.budget->dollars() / price_per_hour->dollars() * 3600);
    if (!cap || end < cap->end) {
      cap = Cap{{}, end, "budget " + format_money(*job.budget)};
    }
  }
  if (cap) {
    // Time to write a checkpoint, inside the cap, but not most of a short one.
    cap->stop = cap->end - std::min<Duration>(job.grace, cap->end / 10);
  }
  return cap;
}

Result<RunOutcome> supervise(
    Launcher& launcher,
    const RunRequest& request,
    const record::RunDirectory& run,
    RunStateFile& state,
    StopSignals& signals,
    Progress& progress) {
  LOCKSTEP_ASSIGN(
      const std::unique_ptr<Coordinator> coordinator,
      Coordinator::open(os::real_files(), os::real_clock(), run));
  return Supervisor(
             launcher, request, run, state, signals, progress, *coordinator)
      .run();
}

}  // namespace lockstep::launch
