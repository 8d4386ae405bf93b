#include "lockstep/launch/shims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <set>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/tail.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kLastLines = 8;
constexpr Duration kSlice = milliseconds(200);
constexpr Duration kTermGrace = seconds(2);
constexpr double kKillSeconds = 5;
constexpr Duration kDrain = seconds(5);
constexpr Duration kPause = milliseconds(10);
constexpr size_t kRoom = 1 << 20;

class Shims : public ShimGroup {
 public:
  Shims(
      ShimStarter& starter,
      const RankPlan& plan,
      const ShimOptions& options,
      const record::RunDirectory& run,
      const os::Clock& clock)
      : starter_(starter),
        plan_(plan),
        options_(options),
        run_(run),
        clock_(clock) {}

  ~Shims() override { close(Duration(0)); }

  // Starts shims for these ranks; an error says what the launcher said.
  Result<void> begin(std::vector<size_t> ranks) {
    ranks_ = std::move(ranks);
    used_ = false;
    HubOptions hub = options_.hub;
    hub.nodes = ranks_.size();
    for (const size_t rank : ranks_) {
      hub.hosts.push_back(host(rank));
    }
    LOCKSTEP_ASSIGN(hub_, Hub::open(hub, options_.key, run_, clock_));
    AgentSpec spec;
    spec.run_id = options_.run_id;
    spec.key = to_hex(options_.key);
    spec.folder = options_.folder;
    for (const std::string& host : options_.head_addresses) {
      os::Address address;
      address.host = host;
      address.port = static_cast<uint16_t>(hub_->port());
      spec.head_addresses.push_back(address.to_string());
    }
    LOCKSTEP_ASSIGN(
        os::SpawnOptions command,
        starter_.command(plan_, ranks_, to_json(spec)));
    command.output = options_.log;
    command.new_group = true;
    log_start_ = os::real_files().size(options_.log).value_or(Bytes{}).count;
    LOCKSTEP_ASSIGN(launcher_, os::real_processes().spawn(command));
    const auto deadline = os::Deadline::after(options_.patience);
    while (true) {
      const auto slice =
          os::Deadline::after(std::min<Duration>(deadline.left(), kSlice));
      const Result<void> gathered = hub_->gather(slice);
      if (gathered) {
        return {};
      }
      if (options_.interrupted && options_.interrupted()) {
        close(Duration(0));
        return Error(
            ErrorCode::kInterrupted, "interrupted before the ranks started");
      }
      const auto status = launcher_->poll();
      const bool ended = !status || status->has_value();
      if (!ended && !deadline.passed()) {
        continue;
      }
      Error error(
          ErrorCode::kUnavailable,
          fmt::format(
              "{} {}: {}{}",
              starter_.name(),
              ended ? fmt::format(
                          "ended before the ranks were there ({})",
                          status ? (*status)->to_string() : "?")
                    : "did not start all ranks in time",
              gathered.error().message(),
              said()));
      close(Duration(0));
      return error;
    }
  }

  size_t size() const override { return plan_.slots.size(); }

  const std::string& host(size_t rank) const override {
    return plan_.nodes.at(static_cast<size_t>(plan_.slots.at(rank).node)).host;
  }

  bool is_lost(size_t rank) const override {
    const auto index = index_of(rank);
    return !index || hub_ == nullptr || hub_->is_lost(*index);
  }

  bool any_away() const override { return hub_ != nullptr && hub_->any_away(); }

  Result<void> start(size_t rank, const StartRequest& request) override {
    const auto index = index_of(rank);
    if (!index || hub_ == nullptr) {
      return Error(
          ErrorCode::kUnavailable,
          fmt::format("rank {} on {} is not there", rank, host(rank)));
    }
    used_ = true;
    return hub_->start(*index, request);
  }

  void end(int signal, Duration grace) override {
    if (hub_ != nullptr) {
      hub_->end(signal, grace);
    }
  }

  void inspect(size_t rank, int number) override {
    if (const auto index = index_of(rank); index && hub_ != nullptr) {
      hub_->inspect(*index, number);
    }
  }

  // A generation uses up its shims: those of the next one are started here,
  // where a supervisor asks what the next one can use.
  std::vector<size_t> present() const override {
    if (used_) {
      const_cast<Shims*>(this)->restart();
    }
    return ranks_;
  }

  int descriptor() const override {
    return hub_ == nullptr ? -1 : hub_->descriptor();
  }

  std::vector<NodeReport> receive(bool files, size_t room) override {
    std::vector<NodeReport> reports = std::exchange(kept_, {});
    if (hub_ != nullptr) {
      take(files, room, reports);
    }
    return reports;
  }

  size_t output_left() override {
    return hub_ == nullptr ? 0 : hub_->output_left();
  }

  const Join* joined(size_t rank) const override {
    const auto index = index_of(rank);
    return !index || hub_ == nullptr ? nullptr : hub_->joined(*index);
  }

  void close(Duration grace) override {
    if (hub_ != nullptr) {
      hub_->close(os::Deadline::after(std::max<Duration>(grace, kSlice)));
    }
    if (launcher_ != nullptr) {
      end_launcher(grace);
      launcher_.reset();
    }
    hub_.reset();
  }

 private:
  void take(bool files, size_t room, std::vector<NodeReport>& reports) {
    for (NodeReport& report : hub_->receive(files, room)) {
      if (const auto* lost = std::get_if<NodeLost>(&report.report)) {
        lost_hosts_.insert(host(ranks_.at(report.node)));
        log_debug(lost->reason);
      }
      report.node = ranks_.at(report.node);
      reports.push_back(std::move(report));
    }
  }

  std::optional<size_t> index_of(size_t rank) const {
    const auto found = std::ranges::find(ranks_, rank);
    if (found == ranks_.end()) {
      return {};
    }
    return static_cast<size_t>(found - ranks_.begin());
  }

  // mpirun waits for minutes for a host that was cut off and does not listen
  // to SIGTERM meanwhile; the programs by which it reaches hosts go with it.
  void end_launcher(Duration grace) {
    if (launcher_->wait(os::Deadline::after(grace))) {
      return;
    }
    (void)launcher_->signal(SIGTERM).has_value();
    if (!launcher_->wait(os::Deadline::after(kTermGrace))) {
      const std::vector<int> below = descendants(launcher_->pid());
      (void)launcher_->signal(SIGKILL).has_value();
      for (const int pid : below) {
        ::kill(pid, SIGKILL);
      }
      (void)launcher_->wait(os::Deadline::after(from_seconds(kKillSeconds)))
          .has_value();
    }
  }

  // A shim goes with its host, but also when the launcher ends all of them.
  void restart() {
    std::erase_if(lost_hosts_, [&](const std::string& host) {
      return starter_.answers(host);
    });
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < size(); ++rank) {
      if (!lost_hosts_.contains(host(rank))) {
        ranks.push_back(rank);
      }
    }
    // Logs of the last generation that are still on their way.
    const auto deadline = os::Deadline::after(kDrain);
    while (hub_ != nullptr && hub_->output_left() > 0 && !deadline.passed()) {
      take(true, kRoom, kept_);
      os::real_clock().sleep_for(kPause);
    }
    close(kTermGrace);
    ranks_.clear();
    // Rank 0's host has the checkpoints: the next question looks for it again.
    if (ranks.empty() || ranks.front() != 0) {
      return;
    }
    if (const auto begun = begin(ranks); !begun) {
      log_warning(begun.error().to_string());
      ranks_.clear();
      used_ = true;  // so that the next question tries again
    }
  }

  std::string said() const {
    std::string text;
    for (const std::string& line :
         last_lines(options_.log, kLastLines, log_start_)) {
      text += "\n  | " + line;
    }
    return text;
  }

  ShimStarter& starter_;
  const RankPlan plan_;
  const ShimOptions options_;
  const record::RunDirectory run_;
  const os::Clock& clock_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<os::Process> launcher_;
  std::vector<size_t> ranks_;  // by index in the hub
  std::set<std::string> lost_hosts_;
  std::vector<NodeReport> kept_;  // of a hub that is closed
  uint64_t log_start_ = 0;
  bool used_ = false;
};

}  // namespace

Result<std::unique_ptr<ShimGroup>> ShimGroup::open(
    ShimStarter& starter,
    const RankPlan& plan,
    const ShimOptions& options,
    const record::RunDirectory& run,
    const os::Clock& clock) {
  auto group = std::make_unique<Shims>(starter, plan, options, run, clock);
  std::vector<size_t> ranks(plan.slots.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  LOCKSTEP_TRY(group->begin(std::move(ranks)));
  return group;
}

}  // namespace lockstep::launch
