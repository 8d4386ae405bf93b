// The supervisor on nodes that the test plays: who is named when reports of
// several nodes cross each other, and with whom a restart goes on.

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>

#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Three nodes with one rank each. What happens is told in advance, as times
// after the start of a generation.
class PlayedNodes : public NodeGroup {
 public:
  using Act = std::function<void(PlayedNodes&)>;
  void play(int generation, Duration at, Act act) {
    plan_[generation].push_back({at, std::move(act)});
  }
  // `ended`: as its keeper saw it, after the start.
  void exit(size_t node, int code, int signal, Duration ended = {}) {
    RankExited exit;
    exit.ended = started_ + ended;
    exit.rank = ranks_.at(node);
    exit.pid = 100 + exit.rank;
    exit.batch = 1;
    exit.status.code = code;
    exit.status.signal = signal;
    exit.was_stopped = ended_;
    news_.push_back({node, exit});
    idle(node);
  }
  void lose(size_t node) {
    lost_.insert(node);
    running_.erase(node);
    news_.push_back({node, NodeLost{"no sign of life"}});
  }
  void idle(size_t node) {
    running_.erase(node);
    news_.push_back({node, NodeIdle{}});
  }
  void say(size_t node, wire::EventBody body) {
    RankEvent event;
    event.event.rank = ranks_.at(node);
    // Clocks of nodes differ by hours.
    event.event.time = 1e9 - 3600.0 * static_cast<double>(node);
    event.event.body = std::move(body);
    event.line = wire::to_json(event.event);
    news_.push_back({node, std::move(event)});
  }

  size_t size() const override { return 3; }
  const std::string& host(size_t node) const override { return hosts_[node]; }
  bool is_lost(size_t node) const override { return lost_.contains(node); }
  bool any_away() const override { return away; }
  void readmit(size_t node) override { lost_.erase(node); }
  std::vector<size_t> present() const override {
    std::vector<size_t> found;
    for (size_t node = 0; node < size(); ++node) {
      if (!lost_.contains(node) || back.contains(node)) {
        found.push_back(node);
      }
    }
    return found;
  }
  Result<void> start(size_t node, const StartRequest& request) override {
    if (request.generation != generation_ || started_ == os::Instant()) {
      generation_ = request.generation;
      started_ = os::real_clock().now();
      done_ = 0;
      ended_ = false;
      worlds.emplace_back();
    }
    const RankCommand& command = request.commands.at(0);
    ranks_[node] = command.rank;
    worlds.back()[node] = command.environment.at("WORLD_SIZE");
    running_.insert(node);
    news_.push_back({node, RankStarted{command.rank, 100 + command.rank}});
    return {};
  }
  void end(int signal, Duration) override {
    ended_ = true;
    for (const size_t node : std::set(running_)) {
      exit(node, 0, signal);
    }
  }
  void inspect(size_t node, int rank) override {
    news_.push_back({node, RankPlace{rank, places[node], "", "install gdb"}});
  }
  int descriptor() const override { return -1; }
  std::vector<NodeReport> receive(bool, size_t) override {
    auto& acts = plan_[generation_];
    const Duration now = os::real_clock().now() - started_;
    while (done_ < acts.size() && acts[done_].at <= now && !ended_) {
      acts[done_++].act(*this);
    }
    return std::exchange(news_, {});
  }
  size_t output_left() override { return 0; }

  bool away = false;
  std::set<size_t> back;  // lost ones that are connected again
  std::map<size_t, std::string> places;
  std::vector<std::map<size_t, std::string>> worlds;  // by generation

 private:
  struct Entry {
    Duration at;
    Act act;
  };
  std::vector<std::string> hosts_ = {"a", "b", "c"};
  std::map<int, std::vector<Entry>> plan_;
  std::vector<NodeReport> news_;
  std::map<size_t, int> ranks_;
  std::set<size_t> running_, lost_;
  int generation_ = 0;
  os::Instant started_;
  size_t done_ = 0;
  bool ended_ = false;
};

class SilentConsole : public Console {
 public:
  void output(int, const std::string&) override {}
  void say(const std::string& text) override { said += text + "\n"; }
  void alarm(const std::string& text) override { alarms += text + "\n"; }
  void update(const LiveState&, int, Duration, std::optional<Money>) override {}
  size_t room() const override { return 1 << 20; }
  bool wait_for_room() override { return true; }
  std::string said, alarms;
};

class NodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() /
            ("lockstep-nodes-" + std::to_string(::getpid()));
    std::vector<PlannedNode> planned;
    for (const char* host : {"a", "b", "c"}) {
      PlannedNode node;
      node.host = host;
      node.interface = "lo";
      planned.push_back(node);
      NodePlace place;
      place.head_address = "127.0.0.1";
      request_.places.push_back(place);
    }
    request_.plan = *plan_ranks(planned);
    request_.job = *program_job({"prog"}, {}, {});
    request_.started = os::real_clock().now();
    request_.come_back = milliseconds(300);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  RunOutcome run() {
    auto made = record::RunDirectory::create(root_, "x");
    RunStateFile state;
    auto outcome = supervise(
        nodes_, request_, *made, state, make_key(), signals_, console_);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().to_string();
    events_ = *os::real_files().read(made->events());
    return outcome ? *outcome : RunOutcome();
  }
  static PlayedNodes::Act exits(size_t node, int code, int signal = 0) {
    return [=](PlayedNodes& nodes) { nodes.exit(node, code, signal); };
  }
  static PlayedNodes::Act lost(size_t node) {
    return [=](PlayedNodes& nodes) { nodes.lose(node); };
  }
  void end_well(int generation, std::initializer_list<size_t> nodes) {
    for (const size_t node : nodes) {
      nodes_.play(generation, milliseconds(10), exits(node, 0));
    }
  }

  std::filesystem::path root_;
  StopSignals signals_;
  PlayedNodes nodes_;
  SilentConsole console_;
  RunRequest request_;
  std::string events_;
};

TEST_F(NodesTest, EndsWell) {
  end_well(0, {0, 1, 2});
  EXPECT_EQ(run().end, RunEnd::kDone);
  EXPECT_EQ(nodes_.worlds.at(0).at(2), "3");
}

TEST_F(NodesTest, NamesTheCrashThoughItsReportComesLater) {
  nodes_.play(0, milliseconds(10), exits(0, 1));
  nodes_.play(0, milliseconds(60), exits(2, 0, SIGSEGV));
  const RunOutcome outcome = run();
  EXPECT_EQ(outcome.failure->rank, 2);
  EXPECT_EQ(outcome.failure->host, "c");
  EXPECT_EQ(console_.alarms.find("rank 0"), std::string::npos);
}

TEST_F(NodesTest, NamesTheFirstOfEquals) {
  nodes_.play(0, milliseconds(10), exits(1, 7));
  nodes_.play(0, milliseconds(20), exits(0, 1));
  nodes_.play(0, milliseconds(20), exits(2, 1));
  EXPECT_EQ(run().failure->rank, 1);
}

TEST_F(NodesTest, NamesWhoEndedFirstThoughItsReportComesLast) {
  const auto ends = [](size_t node, milliseconds ended) {
    return [=](PlayedNodes& nodes) { nodes.exit(node, 1, 0, ended); };
  };
  nodes_.play(0, milliseconds(10), ends(0, milliseconds(8)));
  nodes_.play(0, milliseconds(50), ends(1, milliseconds(6)));
  nodes_.play(0, milliseconds(90), ends(2, milliseconds(3)));
  EXPECT_EQ(run().failure->rank, 2);
  EXPECT_EQ(console_.alarms.find("rank 0"), std::string::npos);
}

TEST_F(NodesTest, NamesACrashAtOnce) {
  nodes_.play(0, milliseconds(10), exits(1, 0, SIGKILL));
  const auto begun = os::real_clock().now();
  EXPECT_EQ(run().failure->rank, 1);
  EXPECT_LT(os::real_clock().now() - begun, seconds(20));
}

TEST_F(NodesTest, NamesTheNodeThatIsAwayAndNotWhoMissesIt) {
  nodes_.away = true;
  nodes_.play(0, milliseconds(10), exits(0, 1));
  nodes_.play(0, milliseconds(900), lost(2));
  const RunOutcome outcome = run();
  EXPECT_TRUE(outcome.failure->lost);
  EXPECT_EQ(outcome.failure->host, "c");
  EXPECT_EQ(outcome.end, RunEnd::kLost);
}

TEST_F(NodesTest, GoesOnWithWhatIsLeft) {
  request_.retries = 1;
  nodes_.play(0, milliseconds(10), lost(1));
  end_well(1, {0, 2});
  const RunOutcome outcome = run();
  EXPECT_EQ(outcome.end, RunEnd::kDone);
  EXPECT_EQ(outcome.generation, 1);
  EXPECT_EQ(nodes_.worlds.at(1).size(), 2);
  EXPECT_EQ(nodes_.worlds.at(1).at(2), "2");
  EXPECT_NE(console_.alarms.find("node b was lost"), std::string::npos);
}

TEST_F(NodesTest, GoesOnWithWhatCameBack) {
  request_.retries = 2;
  request_.come_back = seconds(60);
  nodes_.play(0, milliseconds(10), [](PlayedNodes& nodes) {
    nodes.lose(1);
    nodes.back.insert(1);
  });
  nodes_.play(1, milliseconds(10), exits(0, 1));
  end_well(2, {0, 1, 2});
  EXPECT_EQ(run().end, RunEnd::kDone);
  EXPECT_EQ(nodes_.worlds.at(1).at(1), "3");
  EXPECT_EQ(nodes_.worlds.at(2).at(1), "3");
}

TEST_F(NodesTest, TellsAHangWhateverTheClocksSay) {
  request_.job.hang.after = "300ms";
  request_.job.hang.policy = "stop";
  request_.retries = 3;
  nodes_.places = {
      {0, "sleeping in ep_poll"},
      {1, "sleeping in ep_poll"},
      {2, "stopped (by SIGSTOP or a terminal)"}};
  for (int64_t step = 1; step <= 5; ++step) {
    nodes_.play(0, milliseconds(10 * step), [=](PlayedNodes& nodes) {
      wire::Iteration done;
      done.step = step;
      for (const size_t node : {0, 1, 2}) {
        nodes.say(node, done);
      }
    });
  }
  const RunOutcome outcome = run();
  EXPECT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_EQ(outcome.generation, 0);  // the policy says stop
  EXPECT_EQ(outcome.failure->rank, 2);
  EXPECT_NE(
      console_.alarms.find("rank 2 hangs on c (pid 102)"), std::string::npos)
      << console_.alarms;
  EXPECT_NE(events_.find("hang: stop"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launch
