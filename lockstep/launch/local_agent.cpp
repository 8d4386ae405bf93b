#include "lockstep/launch/local_agent.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/launch/keeper.h"
#include "lockstep/launch/output_events.h"
#include "lockstep/launch/place.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/python_module.h"
#include "lockstep/launch/tail.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/host.h"
#include "lockstep/record/event_log.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr size_t kLastLines = 12;
constexpr size_t kPatternRoom = 8 << 20;  // of output matched in one look

// The files of one rank that are read while it runs.
struct RankFiles {
  explicit RankFiles(const RankCommand& command)
      : log(command.log), events(command.events) {}
  os::Path log;
  uint64_t log_start = 0;  // where this generation's output begins
  record::EventReader events;
  std::optional<Tail> shown;
  std::optional<Tail> matched;
  std::optional<OutputEvents> patterns;
};

// When a file was written to, on the monotonic clock; long ago when it is not
// there.
os::Instant last_write(const os::Path& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    return {};
  }
  // Both clocks at one moment: a third reading tells whether we were held up.
  timespec wall{};
  os::Instant here;
  for (int attempt = 0; attempt < 5; ++attempt) {
    here = os::real_clock().now();
    ::clock_gettime(CLOCK_REALTIME, &wall);
    if (os::real_clock().now() - here < std::chrono::microseconds(50)) {
      break;
    }
  }
  const Duration age =
      std::chrono::seconds(wall.tv_sec - facts.st_mtim.tv_sec) +
      std::chrono::nanoseconds(wall.tv_nsec - facts.st_mtim.tv_nsec);
  return age < Duration(0) ? here : std::max(os::Instant(), here - age);
}

class LocalAgent : public Agent {
 public:
  explicit LocalAgent(KeeperHandle keeper)
      : host_(host_name()), keeper_(std::move(keeper)) {}

  ~LocalAgent() override {
    // The keeper ends what is left and goes once we no longer listen.
    keeper_.channel.reset();
    if (keeper_.process != nullptr) {
      constexpr auto kPatience = std::chrono::seconds(5);
      (void)keeper_.process->wait(os::Deadline::after(kPatience)).has_value();
    }
  }

  const std::string& host() const override { return host_; }

  Result<void> start(const StartRequest& request) override {
    for (const RankCommand& command : request.commands) {
      LOCKSTEP_TRY(follow(command));
    }
    place_python(request);
    if (keeper_.channel == nullptr) {
      return Error(ErrorCode::kUnavailable, "the keeper is gone");
    }
    idle_ = false;
    afters_.clear();
    for (const RankCommand& command : request.commands) {
      if (!command.after.empty()) {
        os::SpawnOptions after;
        after.argv = command.after;
        after.environment = command.environment;
        after.directory = command.directory;
        after.output = command.log;
        afters_.push_back(std::move(after));
      }
    }
    return keeper_.channel->send(encode_start(request));
  }

  Result<void> end(int signal, Duration grace) override {
    places_.cancel();
    if (keeper_.channel == nullptr) {
      return {};
    }
    places_.cancel();  // a rank under a debugger does not hear signals
    (void)keeper_.process->signal(SIGCONT).has_value();
    return keeper_.channel->send(encode_end(signal, grace));
  }

  void renew(Duration left, Duration patience) override {
    if (keeper_.channel != nullptr) {
      (void)keeper_.channel->send(encode_renew(left, patience)).has_value();
    }
  }

  void inspect(int rank) override {
    if (const auto pid = pids_.find(rank); pid != pids_.end()) {
      places_.inspect(rank, pid->second);
    } else {
      answers_.push_back({rank, "not running", "", ""});
    }
  }

  int descriptor() const override {
    return keeper_.channel == nullptr ? -1 : keeper_.channel->descriptor();
  }

  std::vector<Report> receive(bool files, size_t room) override {
    std::vector<Report> reports = std::exchange(late_, {});
    std::vector<Report> keeper_reports;
    if (keeper_.channel != nullptr) {
      take_messages(keeper_reports);
    }
    // What ranks wrote comes before the news that they ended.
    if (files || !keeper_reports.empty()) {
      for (auto& [rank, one] : files_) {
        read_events(rank, one, reports);
      }
    }
    if (files) {
      for (auto& [rank, one] : files_) {
        read_output(rank, one, room, reports);
      }
    }
    std::ranges::move(keeper_reports, std::back_inserter(reports));
    if (places_.waiting()) {
      std::ranges::move(places_.collect(), std::back_inserter(answers_));
    }
    std::ranges::move(answers_, std::back_inserter(reports));
    answers_.clear();
    return reports;
  }

  size_t output_left() override {
    size_t left = 0;
    for (auto& [rank, one] : files_) {
      left += one.shown ? one.shown->left() : 0;
      left += one.matched ? one.matched->left() : 0;
    }
    return left;
  }

 private:
  // Ranks train without it, so that a full disk only costs them the module.
  static void place_python(const StartRequest& request) {
    os::Path last;
    for (const RankCommand& command : request.commands) {
      const auto folder = command.environment.find(kPythonFolder);
      if (folder == command.environment.end() || folder->second == last) {
        continue;
      }
      last = folder->second;
      if (auto placed = place_python_module(os::real_files(), last); !placed) {
        log_warning(placed.error().to_string());
      }
    }
  }

  Result<void> follow(const RankCommand& command) {
    const auto found = files_.try_emplace(command.rank, command);
    RankFiles& one = found.first->second;
    const auto size = os::real_files().size(command.log);
    one.log_start = size ? size->count : 0;
    if (!found.second) {
      if (one.patterns) {
        // What the last generation said is still its own.
        while (one.matched->left() > 0) {
          match_output(command.rank, one, late_);
        }
        match_output(command.rank, one, late_);
        one.patterns->restart();
      }
      return {};
    }
    if (command.show) {
      one.shown.emplace(command.log, one.log_start);
    }
    LOCKSTEP_ASSIGN(
        OutputEvents patterns,
        OutputEvents::make(command.iteration_pattern, command.epoch_pattern));
    if (patterns.active()) {
      one.patterns = std::move(patterns);
      one.matched.emplace(command.log, one.log_start, Tail::Ends::kReturns);
    }
    return {};
  }

  void take_messages(std::vector<Report>& reports) {
    std::vector<json> messages;
    const auto result = keeper_.channel->receive(messages);
    for (const json& message : messages) {
      const std::string type = message.value("type", "");
      if (type == "started") {
        const RankStarted started{message.at("rank"), message.at("pid")};
        pids_[started.rank] = started.pid;
        reports.emplace_back(started);
      } else if (type == "refused") {
        reports.emplace_back(
            RankRefused{message.at("rank"), message.at("reason")});
      } else if (type == "exited") {
        RankExited exit = decode_exit(message);
        pids_.erase(exit.rank);
        if (const auto files = files_.find(exit.rank);
            !exit.status.ok() && files != files_.end()) {
          exit.last_lines = last_lines(
              files->second.log, kLastLines, files->second.log_start);
          exit.spoke = last_write(files->second.log);
        }
        reports.emplace_back(std::move(exit));
      } else if (type == "idle") {
        idle_ = true;
        reports.emplace_back(NodeIdle{});
      } else if (type == "lost") {
        lost_reason_ = message.at("reason");
      }
    }
    if (!result) {
      // Ranks died with the keeper; what they started is ours now.
      keeper_.channel.reset();
      const os::Instant since = os::real_clock().now();
      const bool clean = end_descendants(5);
      run_afters();
      reports.emplace_back(
          NodeLost{
              clean
                  ? lost_reason_
                  : lost_reason_ + ", and some processes it started do not end",
              since});
    }
  }

  // The keeper can no longer do it.
  void run_afters() {
    for (const os::SpawnOptions& after : afters_) {
      constexpr auto kPatience = std::chrono::seconds(10);
      if (const auto process = os::real_processes().spawn(after);
          process &&
          !(*process)->wait(os::Deadline::after(kPatience)).has_value()) {
        (void)(*process)->signal(SIGKILL).has_value();
      }
    }
    afters_.clear();
  }

  void read_events(int rank, RankFiles& one, std::vector<Report>& reports) {
    const auto polled =
        one.events.poll([&](const wire::Event& event, const std::string& line) {
          reports.emplace_back(RankEvent{event, line});
        });
    if (!polled) {
      log_debug(polled.error().to_string());
    }
    if (one.matched) {
      match_output(rank, one, reports);
    }
  }

  void match_output(int rank, RankFiles& one, std::vector<Report>& reports) {
    const double now = os::real_clock().unix_seconds();
    std::vector<std::string> lines = one.matched->read(kPatternRoom);
    if (idle_ && one.matched->left() == 0) {
      std::ranges::move(one.matched->rest(), std::back_inserter(lines));
    }
    for (wire::Event& event : one.patterns->take(lines, now)) {
      event.rank = rank;
      event.node = host_;
      std::string text = wire::to_json(event);
      reports.emplace_back(RankEvent{std::move(event), std::move(text)});
    }
  }

  void read_output(
      int rank,
      RankFiles& one,
      size_t& room,
      std::vector<Report>& reports) {
    if (!one.shown || room == 0) {
      return;
    }
    const uint64_t before = one.shown->left();
    for (std::string& line : one.shown->read(room)) {
      reports.emplace_back(RankOutput{rank, std::move(line)});
    }
    room -= std::min<uint64_t>(room, before);
    if (idle_ && one.shown->left() == 0) {
      for (std::string& line : one.shown->rest()) {
        reports.emplace_back(RankOutput{rank, std::move(line)});
      }
    }
  }

  std::string host_;
  KeeperHandle keeper_;
  std::vector<os::SpawnOptions> afters_;
  std::map<int, RankFiles> files_;  // by rank
  std::map<int, int> pids_;         // of ranks that run
  Places places_;
  std::vector<Report> late_;        // of the generation before
  std::vector<RankPlace> answers_;  // to inspect(), not yet told
  std::string lost_reason_ = "its keeper process was ended";
  bool idle_ = false;
};

}  // namespace

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

int own_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  return os::usable_cores("/", CPU_COUNT(&allowed));
}

Result<std::unique_ptr<Agent>> start_local_agent(
    const os::Path& program,
    KeeperEars ears) {
  become_subreaper();
  LOCKSTEP_ASSIGN(KeeperHandle keeper, start_keeper(program, ears));
  return std::make_unique<LocalAgent>(std::move(keeper));
}

}  // namespace lockstep::launch
