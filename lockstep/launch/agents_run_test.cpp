// The supervisor over real agents on this machine: the whole way from a
// request to ranks and back, without ssh.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/detached.h"
#include "lockstep/launch/hub.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class QuietConsole : public Console {
 public:
  void output(int rank, const std::string& line) override {
    lines.push_back(std::to_string(rank) + ": " + line);
  }
  void say(const std::string& text) override { said += text + "\n"; }
  void alarm(const std::string& text) override { said += text + "\n"; }
  void update(const LiveState&, int, Duration, std::optional<Money>) override {}
  size_t room() const override { return 1 << 20; }
  bool wait_for_room() override { return true; }
  std::vector<std::string> lines;
  std::string said;
};

class AgentsRun : public ::testing::Test {
 protected:
  static constexpr size_t kNodes = 2;

  void SetUp() override {
    HubOptions options;
    options.address = "127.0.0.1";
    options.nodes = kNodes;
    options.hosts = {"alpha", "beta"};
    hub_ = std::move(*Hub::open(options, key_, run_, os::real_clock()));
    std::vector<std::thread> starters;
    for (size_t node = 0; node < kNodes; ++node) {
      starters.emplace_back([this, node] {
        AgentSpec spec;
        spec.run_id = run_.id();
        spec.key = to_hex(key_);
        spec.node = static_cast<int>(node);
        spec.head_addresses = {"127.0.0.1:" + std::to_string(hub_->port())};
        spec.folder = node_folder(node);
        const auto line = start_detached(
            {LOCKSTEP_PROGRAM, "agent"},
            to_json(spec),
            os::Deadline::after(seconds(60)));
        EXPECT_EQ(line.value_or("nothing"), "joined");
      });
    }
    EXPECT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
    for (std::thread& starter : starters) {
      starter.join();
    }
  }
  void TearDown() override {
    hub_->close(os::Deadline::after(seconds(60)));
    EXPECT_TRUE(come([this] {
      return std::ranges::none_of(
          pids_, [](int pid) { return start_ticks(pid).has_value(); });
    }));
  }
  os::Path node_folder(size_t node) const {
    return folder_.path() / ("node" + std::to_string(node));
  }
  int agent_pid(size_t node) const {
    return std::atoi(
        os::real_files().read(node_folder(node) / "agent.pid")->c_str());
  }
  std::string log(int rank) const {
    return os::real_files().read(run_.rank_log(rank)).value_or("");
  }
  // For what other processes do.
  static bool come(const std::function<bool()>& holds) {
    const auto deadline = os::Deadline::after(seconds(60));
    while (!holds() && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return holds();
  }
  Result<RunOutcome> supervise_script(
      const std::string& script,
      int retries = 0) {
    RunRequest request;
    request.job = *program_job({"bash", "-c", script}, {}, {});
    request.program = "bash";
    request.retries = retries;
    request.show_all = true;
    request.come_back = Duration(0);
    request.started = os::real_clock().now();
    std::vector<PlannedNode> nodes;
    for (size_t node = 0; node < kNodes; ++node) {
      nodes.push_back(
          {.host = hub_->host(node),
           .procs = 2,
           .cores = 1,
           .interface = hub_->joined(node)->interface});
      NodePlace place;
      place.workdir = folder_.path();
      place.folder = node_folder(node);
      place.run_directory = node == 0 ? run_.path() : place.folder;
      place.key_file = place.folder / ".key";
      place.inherited = os::environment();
      place.head_address = "127.0.0.1";
      request.places.push_back(place);
    }
    request.plan = *plan_ranks(nodes);
    RunStateFile state;
    StopSignals signals;
    return supervise(*hub_, request, run_, state, key_, signals, console_);
  }

  record::TemporaryFolder folder_;
  record::RunDirectory run_ =
      *record::RunDirectory::create(folder_.path(), "x");
  Key key_ = make_key();
  std::unique_ptr<Hub> hub_;
  QuietConsole console_;
  std::vector<int> pids_;  // that must be gone in the end
};

TEST_F(AgentsRun, RunsToItsEndOnAllNodes) {
  for (size_t node = 0; node < kNodes; ++node) {
    pids_.push_back(agent_pid(node));
  }
  const auto outcome = supervise_script(
      "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK on node $NODE_RANK; "
      "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME; wc -c < $LOCKSTEP_KEY_FILE");
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  EXPECT_EQ(outcome->end, RunEnd::kDone) << outcome->detail;
  EXPECT_EQ(log(0), "rank 0 of 4, 0 on node 0\n127.0.0.1 lo\n65\n");
  EXPECT_EQ(log(3), "rank 3 of 4, 1 on node 1\n127.0.0.1 lo\n65\n");
  EXPECT_EQ(console_.lines.size(), 12);
  hub_->close(os::Deadline::after(seconds(60)));
  EXPECT_TRUE(come([this] {
    return !std::filesystem::exists(node_folder(0)) &&
           !std::filesystem::exists(node_folder(1));
  }));
}

TEST_F(AgentsRun, NamesTheRankThatFailedAndEndsTheOthers) {
  const auto outcome = supervise_script(
      "trap '' TERM; echo $$; if [ $RANK = 3 ]; then echo boom; exit 9; fi; "
      "while :; do sleep 0.05; done");
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  EXPECT_EQ(outcome->end, RunEnd::kFailed);
  EXPECT_THAT(outcome->detail, HasSubstr("rank 3 failed on beta"));
  EXPECT_THAT(outcome->detail, HasSubstr("exit code 9"));
  EXPECT_THAT(console_.said, HasSubstr("boom"));
  for (int rank = 0; rank < 4; ++rank) {
    if (const int pid = std::atoi(log(rank).c_str()); pid > 0) {
      EXPECT_FALSE(start_ticks(pid)) << "rank " << rank << " is still there";
    }
  }
}

TEST_F(AgentsRun, GoesOnWithTheNodesThatAreLeft) {
  const int victim = agent_pid(1);
  std::thread killer([&] {
    EXPECT_TRUE(come([&] { return log(2).ends_with("up\n"); }));
    ::kill(victim, SIGKILL);
  });
  const auto outcome = supervise_script(
      "echo $LOCKSTEP_GENERATION $RANK of $WORLD_SIZE; "
      "[ $LOCKSTEP_GENERATION = 1 ] && exit 0; echo up; sleep 300",
      1);
  killer.join();
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  EXPECT_EQ(outcome->end, RunEnd::kDone) << outcome->detail;
  EXPECT_EQ(outcome->generation, 1);
  EXPECT_THAT(console_.said, HasSubstr("node beta was lost"));
  EXPECT_EQ(log(0), "0 0 of 4\nup\n1 0 of 2\n");
  EXPECT_EQ(log(1), "0 1 of 4\nup\n1 1 of 2\n");
}

TEST_F(AgentsRun, BringsAllOfALargeOutput) {
  // Lines of 100 bytes from each rank, 5 MB in all.
  const auto outcome = supervise_script(
      "head -c 1250000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo last");
  ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  EXPECT_EQ(outcome->end, RunEnd::kDone) << outcome->detail;
  const std::string one = log(2);
  EXPECT_GT(one.size(), 1260000);
  EXPECT_TRUE(one.ends_with("\nlast\n"));
  EXPECT_EQ(log(0), one);
  EXPECT_EQ(log(3), one);
}

}  // namespace
}  // namespace lockstep::launch
