#include "lockstep/launch/agent_loop.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/launch/dialer.h"
#include "lockstep/launch/log_sender.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(100);  // at output and events
constexpr Duration kRest = seconds(1);         // between looks without ranks
constexpr size_t kMostQueued = size_t{256} << 10;  // in the channel
constexpr size_t kMostKept = 20000;                // reports not yet heard
constexpr size_t kMostBatch = 500;                 // reports in a message
constexpr Duration kForsakenGrace = seconds(2);
constexpr Duration kWelcomeTime = seconds(5);
constexpr Duration kNobody = seconds(5);     // listens where the head was
constexpr Duration kFarewell = seconds(10);  // for the last words of a shim
// The keeper acts a little after we do, and only when we do not.
constexpr Duration kKeeperMargin = seconds(1);
constexpr Duration kStoppedTime = seconds(30);  // then it ends us, too

class AgentLoop {
 public:
  explicit AgentLoop(AgentLoopOptions options)
      : options_(std::move(options)),
        dialer_(options_.head_addresses, options_.key),
        heard_(now()) {
    options_.join.session = to_hex(make_key()).substr(0, 16);
  }

  Result<AgentLoopEnd> run() {
    auto agent = options_.make_agent();
    if (!agent) {
      tell_joined(agent.error());
      return Error(std::move(agent.error()));
    }
    agent_ = std::move(*agent);
    while (!finished()) {
      wait();
      note_stop();
      if (channel_ == nullptr) {
        dial();
      } else {
        hear();
      }
      look_at_ranks();
      look_at_notices();
      act_on_time();
      speak();
      if (failure_) {
        tell_joined(*failure_);
        return *failure_;
      }
    }
    agent_.reset();
    end_.heard = kept_.empty() && logs_.done();
    return end_;
  }

 private:
  static os::Instant now() { return os::real_clock().now(); }

  bool finished() const {
    if (busy_) {
      return false;
    }
    if (leaving_) {
      return true;
    }
    const bool said = kept_.empty() && logs_.done() &&
                      (channel_ == nullptr || !channel_->wants_to_write());
    return options_.until_idle && end_.ran &&
           (said || (farewell_ && farewell_->passed()));
  }

  // Every status of the poll is found again by the calls that follow.
  void wait() {
    std::vector<pollfd> sources;
    const os::Instant time = now();
    Duration most = busy_ ? kLook - (time - looked_) : kRest;
    if (more_to_send_ && channel_ != nullptr &&
        channel_->queued() < kMostQueued) {
      most = Duration(0);
    }
    if (channel_ != nullptr) {
      const bool writing = channel_->wants_to_write();
      sources.push_back(
          {channel_->descriptor(),
           static_cast<short>(POLLIN | (writing ? POLLOUT : 0)),
           0});
      most = std::min<Duration>(most, beat_ - (time - beaten_));
    } else {
      dialer_.watch(sources);
      most = std::min(most, dialer_.wait());
    }
    if (busy_ && !forsaken_) {
      most = std::min<Duration>(most, lease_ - (time - heard_));
    }
    if (agent_ != nullptr) {
      sources.push_back({agent_->descriptor(), POLLIN, 0});
    }
    sources.push_back({options_.stop_descriptor, POLLIN, 0});
    const auto whole =
        std::chrono::ceil<milliseconds>(std::max(Duration(0), most));
    ::poll(sources.data(), sources.size(), static_cast<int>(whole.count()));
  }

  void note_stop() {
    const int signal = options_.on_stop ? options_.on_stop() : 0;
    if (signal == 0) {
      return;
    }
    if (busy_ && agent_ != nullptr) {
      // A shim's rank may write its checkpoint for as long as whoever sent the
      // signal lets it; but its container must be gone when SIGKILL comes to
      // us.
      const Duration grace = options_.until_idle && !has_after_
                                 ? Duration(std::chrono::hours(24))
                                 : grace_;
      foreign_stop_ = options_.until_idle && !asked_;
      (void)agent_->end(signal, grace).has_value();
    }
    // A shim whose rank ran has its last words to say.
    if (!options_.until_idle || (!busy_ && !end_.ran)) {
      leaving_ = true;
    }
  }

  void dial() {
    auto found = dialer_.advance();
    if (!joined_ && options_.is_abandoned && options_.is_abandoned()) {
      failure_ = Error(ErrorCode::kInterrupted, "nobody waits for this agent");
      return;
    }
    if (!found) {
      if (!joined_ && now() - heard_ > options_.patience) {
        failure_ = Error(
                       ErrorCode::kUnavailable,
                       fmt::format(
                           "{} cannot reach the head: {}",
                           options_.join.host,
                           dialer_.trouble()))
                       .with_fix(
                           "open the port of the head to its nodes, or choose "
                           "a range that is open with --ports");
      }
      return;
    }
    channel_ = std::move(found->channel);
    const OwnEnd end = own_end(channel_->descriptor());
    Join join = options_.join;
    join.own_address = end.address;
    join.interface = end.interface;
    join.head_address = found->address;
    join.time = os::real_clock().unix_seconds();
    (void)channel_->send(encode(join)).has_value();
    welcome_by_ = now() + kWelcomeTime;
    welcomed_ = false;
  }

  void hear() {
    std::vector<std::string> messages;
    const Result<void> result = channel_->pump(messages);
    for (const std::string& bytes : messages) {
      auto message = decode_head_message(bytes);
      if (!message) {
        cut(message.error().message());
        return;
      }
      heard_ = now();
      std::visit([this](auto& one) { take(one); }, *message);
      if (channel_ == nullptr) {
        return;
      }
    }
    if (!result) {
      cut(result.error().message());
    } else if (!welcomed_ && now() > welcome_by_) {
      cut("the head did not answer");
    }
  }

  void cut(const std::string& why) {
    if (!leaving_) {
      log_info(fmt::format("lost the head: {}", why));
    }
    channel_.reset();
  }

  void take(const Welcome& welcome) {
    welcomed_ = true;
    lease_ = std::max<Duration>(welcome.lease, milliseconds(10));
    beat_ = std::min<Duration>(kBeat, lease_ / 5);
    tell_joined({});
    if (busy_ && welcome.generation != generation_) {
      forsake("the head gave this node up");
    }
    forget_heard(welcome.heard);
    sent_ = 0;  // what it has not heard goes again
    logs_.resume(*channel_, welcome.logs);
  }

  void take(const Refuse& refuse) {
    if (!joined_) {
      failure_ = Error(
          ErrorCode::kPermission,
          fmt::format(
              "the head refused {}: it {}", options_.join.host, refuse.reason));
    }
    cut("it refused us: " + refuse.reason);
  }

  void take(const Beat& beat) { forget_heard(beat.heard); }

  void take(StartRequest& request) {
    if (options_.adapt) {
      options_.adapt(request);
    }
    for (RankCommand& command : request.commands) {
      command.show = false;  // the head reads its own copy
    }
    start_ = std::move(request);
    start_when_idle();
  }

  void take(const EndRanks& end) {
    start_.reset();
    asked_ = true;
    if (agent_ != nullptr) {
      (void)agent_->end(end.signal, end.grace).has_value();
    }
  }

  void take(const Inspect& inspect) {
    if (agent_ != nullptr) {
      agent_->inspect(inspect.rank);
    }
  }

  void take(const Bye&) {
    leaving_ = true;
    end_.said_bye = true;
    if (busy_) {
      forsake("the run is over");
    }
  }

  void start_when_idle() {
    if (!start_ || busy_) {
      return;
    }
    const StartRequest request = *std::exchange(start_, {});
    generation_ = request.generation;
    grace_ = request.orphan_grace;
    stop_signal_ = request.stop_signal;
    has_after_ = std::ranges::any_of(
        request.commands, [](const auto& one) { return !one.after.empty(); });
    forsaken_ = false;
    asked_ = false;
    foreign_stop_ = false;
    Result<void> started;
    if (agent_ == nullptr) {  // the last one was lost
      auto made = options_.make_agent();
      if (made) {
        agent_ = std::move(*made);
      } else {
        started = Error(std::move(made.error()));
      }
    }
    logs_.begin(request);
    if (started) {
      std::error_code ignored;
      for (const RankCommand& command : request.commands) {
        std::filesystem::create_directories(command.log.parent_path(), ignored);
      }
      started = agent_->start(request);
    }
    if (!started) {
      for (const RankCommand& command : request.commands) {
        keep(RankRefused{command.rank, started.error().to_string()});
      }
      logs_.finish(channel_.get());
      keep(NodeIdle{});
      return;
    }
    busy_ = true;
    looked_ = {};
    renewed_ = {};
  }

  // Nobody wants these ranks any more.
  void forsake(const std::string& why) {
    if (!forsaken_ && agent_ != nullptr) {
      log_info(fmt::format("ending the ranks: {}", why));
      forsaken_ = true;
      (void)agent_->end(stop_signal_, std::min(grace_, kForsakenGrace))
          .has_value();
    }
  }

  void look_at_ranks() {
    if (agent_ == nullptr) {
      return;
    }
    const bool look =
        now() - looked_ >= kLook && busy_ && kept_.size() < kMostKept;
    if (look) {
      looked_ = now();
      more_to_send_ = true;  // the sender finds out
    }
    for (Report& report : agent_->receive(look, 0)) {
      const bool idle = std::holds_alternative<NodeIdle>(report);
      const bool lost = std::holds_alternative<NodeLost>(report);
      if (auto* exit = std::get_if<RankExited>(&report)) {
        // The head must hear of an end that it did not ask for.
        exit->was_stopped &= !foreign_stop_;
        end_.ran = true;
        end_.status = exit->status;
      } else if (std::holds_alternative<RankRefused>(report)) {
        constexpr int kCannotExecute = 126;
        end_.ran = true;
        end_.status.code = kCannotExecute;
      }
      if (idle || lost) {
        rest();
      }
      keep(std::move(report));
      if (lost) {
        agent_.reset();
        break;
      }
    }
    start_when_idle();
  }

  // Told once to each generation: the next one must know it, too.
  void look_at_notices() {
    if (!options_.notice || !busy_) {
      return;
    }
    auto notice = options_.notice();
    if (notice && (notice != noticed_ || generation_ != noticed_in_)) {
      noticed_ = notice;
      noticed_in_ = generation_;
      keep(std::move(*notice));
    }
  }

  // The last look at what ranks wrote, then their logs have an end.
  void rest() {
    busy_ = false;
    for (Report& report : agent_->receive(true, 0)) {
      keep(std::move(report));
    }
    logs_.finish(channel_.get());
    more_to_send_ = true;
    farewell_ = os::Deadline::after(kFarewell);
  }

  void keep(Report report) {
    kept_.push_back({generation_, std::move(report)});
  }

  void forget_heard(uint64_t heard) {
    while (first_ < heard && !kept_.empty()) {
      kept_.pop_front();
      ++first_;
      sent_ -= sent_ > 0 ? 1 : 0;
    }
  }

  void act_on_time() {
    const os::Instant time = now();
    if (busy_ && time - renewed_ >= beat_) {
      renewed_ = time;
      const Duration left =
          forsaken_ ? lease_ : lease_ - (time - heard_) + kKeeperMargin;
      agent_->renew(left, kStoppedTime);
    }
    if (busy_ && time - heard_ > lease_) {
      forsake("the head is silent and the lease is over");
    }
    if (joined_ && (time - heard_ > options_.rejoin ||
                    (channel_ == nullptr && dialer_.refused() > kNobody))) {
      leaving_ = true;
    }
    if (channel_ != nullptr && welcomed_ && time - heard_ > lease_) {
      cut("it is silent");
    }
  }

  void speak() {
    if (channel_ == nullptr || !welcomed_) {
      return;
    }
    if (now() - beaten_ >= beat_) {
      beaten_ = now();
      (void)channel_
          ->send(encode(
              AgentMessage(Beat{os::real_clock().unix_seconds(), 0, now()})))
          .has_value();
    }
    send_reports();
    if (more_to_send_) {
      more_to_send_ = logs_.send(*channel_);
    }
  }

  void send_reports() {
    while (sent_ < kept_.size() && channel_->queued() < kMostQueued) {
      Reports batch;
      batch.generation = kept_[sent_].generation;
      batch.first = first_ + sent_;
      while (sent_ < kept_.size() && batch.reports.size() < kMostBatch &&
             kept_[sent_].generation == batch.generation) {
        batch.reports.push_back(kept_[sent_].report);
        ++sent_;
      }
      batch.clock = now();
      (void)channel_->send(encode(batch)).has_value();
    }
  }

  void tell_joined(const Result<void>& result) {
    if (!joined_ && options_.on_joined) {
      options_.on_joined(result);
    }
    joined_ = true;
  }

  struct Kept {
    int generation = 0;
    Report report;
  };

  AgentLoopOptions options_;
  Dialer dialer_;
  std::unique_ptr<wire::Channel> channel_;  // null: not connected
  std::unique_ptr<Agent> agent_;            // null: it was lost
  LogSender logs_;
  std::deque<Kept> kept_;              // reports that the head has not heard
  uint64_t first_ = 0;                 // the number of the first of them
  size_t sent_ = 0;                    // of them, through this connection
  std::optional<StartRequest> start_;  // waits for the last ranks to end
  std::optional<Error> failure_;
  std::optional<os::Deadline> farewell_;
  AgentLoopEnd end_;
  std::optional<NodeNotice> noticed_;  // as the head was told
  int noticed_in_ = -1;                // in which generation
  Duration lease_ = kLease;
  Duration beat_ = kBeat;
  Duration grace_{};
  int stop_signal_ = SIGTERM;
  int generation_ = -1;
  os::Instant heard_;  // the head's last word; at first: the start
  os::Instant welcome_by_;
  os::Instant beaten_{};
  os::Instant looked_{};
  os::Instant renewed_{};  // the lease with the keeper
  bool joined_ = false;
  bool welcomed_ = false;      // through this connection
  bool busy_ = false;          // ranks are there
  bool has_after_ = false;     // something must be done when one has ended
  bool forsaken_ = false;      // they were told to end by ourselves
  bool asked_ = false;         // they were told to end by the head
  bool foreign_stop_ = false;  // a shim was: by its launcher, and not the head
  bool leaving_ = false;
  bool more_to_send_ = false;
};

}  // namespace

Result<AgentLoopEnd> run_agent_loop(AgentLoopOptions options) {
  return AgentLoop(std::move(options)).run();
}

}  // namespace lockstep::launch
