#include "lockstep/launch/run_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "lockstep/base/log.h"
#include "lockstep/launch/agent_protocol.h"
#include "lockstep/launch/traffic.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLook = milliseconds(100);  // at output and events
constexpr Duration kCulpritWait = milliseconds(500);
constexpr Duration kSettling = milliseconds(150);  // reports cross each other
constexpr Duration kFailureGrace = seconds(2);  // for ranks beside a failed one
constexpr Duration kKillPatience = seconds(10);  // SIGKILL to gone
constexpr Duration kOutputPatience = seconds(10);

}  // namespace

RunWatch::RunWatch(
    const RunRequest& request,
    const record::RunDirectory& run,
    StopSignals& signals,
    Console& console,
    Coordinator& coordinator)
    : request_(request),
      run_(run),
      signals_(signals),
      console_(console),
      coordinator_(coordinator),
      cap_(cap_of(request.job, request.price_per_hour, request.terms)),
      hang_(request.job.hang.limit()) {}

void RunWatch::use(NodeGroup& nodes) {
  nodes_ = &nodes;
  busy_.assign(nodes.size(), false);
}

void RunWatch::begin(const Generation& generation, int stop_signal) {
  generation_ = &generation;
  stop_signal_ = stop_signal;
  hang_.begin();
}

Result<void> RunWatch::start(size_t node, const StartRequest& request) {
  LOCKSTEP_TRY(nodes_->start(node, request));
  busy_[node] = true;
  return {};
}

void RunWatch::look() {
  wait_for_news(os::real_clock().now() + kLook);
  receive(true);
  note_signals();
}

Duration RunWatch::elapsed() const {
  return os::real_clock().now() - request_.started;
}

bool RunWatch::is_capped() const {
  return (request_.timeout && elapsed() >= *request_.timeout) ||
         (cap_ && elapsed() >= cap_->stop);
}

std::optional<Money> RunWatch::cost() const {
  if (!request_.price_per_hour) {
    return {};
  }
  return *request_.price_per_hour * (to_seconds(elapsed()) / 3600) +
         traffic_cost(request_.terms, stored_);
}

void RunWatch::run_to_idle() {
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
      note_traffic();
      note_cost();
      note_directory();
      flush();
      console_.update(
          coordinator_.live(), coordinator_.world_size(), elapsed(), cost());
    }
    if (any_busy() && gone_deadline_ && gone_deadline_->passed()) {
      log_error("some processes do not end, even by SIGKILL");
      return;
    }
  }
  next_traffic_ = {};
  note_traffic();  // with the last checkpoint
  if (cause_ == Cause::kNone && coordinator_.failure()) {
    cause_ = Cause::kFailure;  // all ended by themselves meanwhile
    announce_failure();
  }
  flush();
}

bool RunWatch::any_busy() const {
  return std::ranges::find(busy_, true) != busy_.end();
}

size_t RunWatch::receive(bool look) {
  const auto reports = nodes_->receive(look, console_.room());
  for (const auto& [node, report] : reports) {
    take(report, nodes_->host(node));
    note_doom(node, report);
    if (std::holds_alternative<NodeIdle>(report) ||
        std::holds_alternative<NodeLost>(report)) {
      busy_[node] = false;
    }
  }
  return reports.size();
}

// A machine that is taken away: ranks get the time that is left to write their
// checkpoint. A hint is only told.
void RunWatch::note_doom(size_t node, const Report& report) {
  if (std::holds_alternative<NodeLost>(report) && is_spot(node)) {
    taken_at_ = taken_at_.value_or(os::real_clock().now());
    return;
  }
  const auto* notice = std::get_if<NodeNotice>(&report);
  if (notice == nullptr) {
    return;
  }
  console_.say(
      fmt::format(
          "{}: the cloud tells {}", nodes_->host(node), to_string(*notice)));
  if (notice->kind != "interruption") {
    return;
  }
  doomed_[node] = nodes_->session(node);
  taken_at_ = taken_at_.value_or(os::real_clock().now());
  if (cause_ != Cause::kNone) {
    return;
  }
  constexpr Duration kMargin = seconds(10);  // to be gone before it is
  const Duration left =
      from_seconds(notice->at - os::real_clock().unix_seconds()) - kMargin;
  end_ranks(
      Cause::kTakenAway,
      stop_signal_,
      std::clamp<Duration>(left, seconds(1), request_.job.grace));
}

void RunWatch::wait_for_news(os::Instant next_look) {
  pollfd sources[] = {
      {signals_.descriptor(), POLLIN, 0}, {nodes_->descriptor(), POLLIN, 0}};
  Duration wait =
      std::max(Duration(0), Duration(next_look - os::real_clock().now()));
  if (request_.timeout && cause_ == Cause::kNone) {
    wait = std::min(wait, *request_.timeout - elapsed());
  }
  if (failed_ && cause_ == Cause::kNone) {
    const Duration time = settling_time(*coordinator_.failure());
    wait = std::min<Duration>(wait, *failed_ + time - os::real_clock().now());
  }
  const auto whole =
      std::chrono::ceil<milliseconds>(std::max(Duration(0), wait));
  ::poll(sources, std::size(sources), static_cast<int>(whole.count()));
}

void RunWatch::take(const Report& report, const std::string& host) {
  if (const auto* output = std::get_if<RankOutput>(&report)) {
    console_.output(output->rank, redact(request_.job, output->line));
    return;
  }
  hang_.take(report, host, os::real_clock().now());
  warn(coordinator_.take(report, host));
}

void RunWatch::flush() {
  warn(coordinator_.flush());
}

// The record of a run must not end the run; say so once.
void RunWatch::warn(const Result<void>& result) {
  if (!result && !warned_) {
    warned_ = true;
    console_.say("warning: " + result.error().to_string());
  }
}

void RunWatch::end_ranks(Cause cause, int signal, Duration grace) {
  if (cause_ == Cause::kNone) {
    cause_ = cause;
  }
  nodes_->end(signal, grace);
  gone_deadline_ = os::Deadline::after(grace + kKillPatience);
}

// A rank that lost a peer may end before the peer has quite died, and its
// report may come before that of the peer. While a node is away, that is the
// likelier reason.
Duration RunWatch::settling_time(const Failure& failure) const {
  if (!failure.certain && nodes_->any_away()) {
    return kLease;
  }
  if (failure.consequence) {
    return kCulpritWait;
  }
  const bool alone = failure.certain ? generation_->plan.nodes.size() <= 1
                                     : generation_->plan.world_size() <= 1;
  return alone ? Duration(0) : kSettling;
}

void RunWatch::note_failure() {
  if (cause_ != Cause::kNone || !coordinator_.failure()) {
    return;
  }
  const os::Instant now = os::real_clock().now();
  failed_ = failed_.value_or(now);
  if (now - *failed_ >= settling_time(*coordinator_.failure())) {
    announce_failure();
    end_ranks(Cause::kFailure, SIGTERM, kFailureGrace);
  }
}

void RunWatch::note_hang() {
  if (cause_ != Cause::kNone || coordinator_.failure()) {
    return;
  }
  const HangNews news = hang_.look(os::real_clock().now());
  for (const int rank : news.inspect) {
    nodes_->inspect(generation_->members.at(static_cast<size_t>(rank)), rank);
  }
  if (!news.resumed.empty()) {
    console_.say(redact(request_.job, news.resumed));
    coordinator_.note(wire::Decision{"resumed", news.resumed});
  }
  if (!news.hang) {
    return;
  }
  const std::string& policy = request_.job.hang.policy;
  coordinator_.note(wire::Decision{"hang: " + policy, news.hang->to_string()});
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
void RunWatch::announce_failure() {
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

void RunWatch::note_signals() {
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
    end_ranks(Cause::kInterrupt, stop_signal_, request_.job.grace);
  } else {
    console_.say("killing the ranks");
    end_ranks(Cause::kInterrupt, SIGKILL, Duration(0));
  }
}

void RunWatch::note_time() {
  if (cause_ != Cause::kNone) {
    return;
  }
  if (request_.timeout && elapsed() >= *request_.timeout) {
    console_.say(
        fmt::format(
            "timeout after {}: stopping", format_duration(*request_.timeout)));
    end_ranks(Cause::kTimeout, stop_signal_, request_.job.grace);
  } else if (cap_ && elapsed() >= cap_->stop) {
    console_.say(fmt::format("{}: stopping", cap_->reason));
    coordinator_.note(wire::Decision{"stop", cap_->reason});
    end_ranks(
        Cause::kCap,
        stop_signal_,
        std::max(Duration(0), cap_->end - elapsed()));
  }
}

// So that a run whose machine is lost still tells what it cost.
void RunWatch::note_cost() {
  constexpr Duration kEvery = std::chrono::minutes(1);
  if (request_.price_per_hour && elapsed() >= next_cost_) {
    next_cost_ = elapsed() + kEvery;
    coordinator_.note(
        wire::Cost{cost()->dollars(), request_.price_per_hour->dollars()});
  }
}

// What the run directory holds goes to the user's machine in the end, which a
// budget pays for: its end comes nearer as checkpoints grow. Best and last are
// two of them, and either may still come; how large they will be a program may
// say before it has written any.
void RunWatch::note_traffic() {
  constexpr Duration kEvery = seconds(5);
  if (request_.terms.gigabyte == Money() || elapsed() < next_traffic_) {
    return;
  }
  next_traffic_ = elapsed() + kEvery;
  stored_ = run_bytes(run_);
  const uint64_t checkpoints = checkpoint_bytes(run_).count;
  const auto told = static_cast<uint64_t>(coordinator_.live().checkpoint_bytes);
  const Bytes most{
      stored_.count - std::min(stored_.count, checkpoints) +
      (told > 0 ? std::max(checkpoints, 2 * told) : 2 * checkpoints)};
  cap_ = cap_of(request_.job, request_.price_per_hour, request_.terms, most);
}

// Whoever deletes the directory of a run wants no more of it, and nobody could
// find its processes again. A file system may be away for a moment: only one
// that says so for a while counts.
void RunWatch::note_directory() {
  constexpr int kLooks = 20;  // two seconds
  struct stat facts{};
  const bool is_gone =
      ::stat(run_.path().c_str(), &facts) != 0 && errno == ENOENT;
  missing_looks_ = is_gone ? missing_looks_ + 1 : 0;
  if (missing_looks_ < kLooks || cause_ != Cause::kNone) {
    return;
  }
  console_.say(fmt::format("{} was deleted: stopping", run_.path().string()));
  ++interrupts_;
  end_ranks(Cause::kInterrupt, stop_signal_, request_.job.grace);
}

void RunWatch::show_rest() {
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

}  // namespace lockstep::launch
