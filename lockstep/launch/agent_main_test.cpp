#include "lockstep/launch/agent_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <sstream>
#include <thread>

#include "lockstep/launch/detached.h"
#include "lockstep/launch/hub.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/os/process.h"
#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(AgentSpecText, ReadsBackAndNamesWhatIsWrong) {
  AgentSpec spec;
  spec.run_id = "id";
  spec.key = to_hex(make_key());
  spec.node = 2;
  spec.head_addresses = {"10.0.0.1:1", "10.0.0.2:1"};
  spec.folder = "/tmp/x";
  const auto read = parse_agent_spec(to_json(spec));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->key, spec.key);
  EXPECT_EQ(read->node, 2);
  EXPECT_EQ(read->head_addresses, spec.head_addresses);
  EXPECT_EQ(read->folder, spec.folder);
  const auto refusal = [](const std::string& text) {
    const auto parsed = parse_agent_spec(text);
    return parsed ? "" : parsed.error().message();
  };
  EXPECT_THAT(refusal("x"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("'run_id'"));
  spec.key = "12";
  EXPECT_THAT(refusal(to_json(spec)), HasSubstr("64 hexadecimal"));
  spec.key = to_hex(make_key());
  spec.folder = "x";
  EXPECT_THAT(refusal(to_json(spec)), HasSubstr("relative"));
  spec.folder = "/x";
  spec.head_addresses.clear();
  EXPECT_THAT(refusal(to_json(spec)), HasSubstr("head_addresses"));
}

// Real agents and shims: processes of the lockstep program.
class RealAgent : public ::testing::Test {
 protected:
  void SetUp() override {
    HubOptions options;
    options.address = "127.0.0.1";
    options.nodes = 1;
    hub_ = std::move(*Hub::open(options, key_, run_, os::real_clock()));
    node_ = folder_.path() / "node";
  }
  void TearDown() override {
    hub_->close(os::Deadline::after(seconds(60)));
    if (agent_ > 0) {
      EXPECT_TRUE(until([&] { return !start_ticks(agent_); }));
    }
  }
  AgentSpec spec() const {
    AgentSpec spec;
    spec.run_id = run_.id();
    spec.key = to_hex(key_);
    // The first one answers nobody with our key.
    spec.head_addresses = {
        "127.0.0.1:1", "127.0.0.1:" + std::to_string(hub_->port())};
    spec.folder = node_;
    return spec;
  }
  void start_agent() {
    Result<std::string> line;
    std::atomic<bool> answered{false};
    std::thread starter([&] {
      line = start_detached(
          {LOCKSTEP_PROGRAM, "agent"},
          to_json(spec()),
          os::Deadline::after(seconds(60)));
      answered = true;
    });
    EXPECT_TRUE(until([&] { return answered.load(); }));
    starter.join();
    ASSERT_TRUE(line.has_value()) << line.error().to_string();
    ASSERT_EQ(*line, "joined");
    agent_ = std::atoi(read(node_ / "agent.pid").c_str());
    ASSERT_GT(agent_, 0);
  }
  ::testing::AssertionResult until(const std::function<bool()>& holds) {
    const auto deadline = os::Deadline::after(seconds(60));
    while (!holds()) {
      if (deadline.passed()) {
        return ::testing::AssertionFailure() << "it never came";
      }
      pollfd news{hub_->descriptor(), POLLIN, 0};
      ::poll(&news, 1, 10);
      for (NodeReport& report : hub_->receive(true, 1 << 20)) {
        reports_.push_back(std::move(report.report));
      }
    }
    return ::testing::AssertionSuccess();
  }
  template <class T>
  const T* find() const {
    for (const Report& report : reports_) {
      if (const T* found = std::get_if<T>(&report)) {
        return found;
      }
    }
    return nullptr;
  }
  StartRequest request(const std::string& script) const {
    StartRequest start;
    start.orphan_grace = seconds(2);
    RankCommand command;
    command.rank = 0;
    command.argv = {"bash", "-c", script};
    command.environment = os::environment();
    command.environment["FROM_HEAD"] = "yes";
    command.environment["LOCKSTEP_KEY_FILE"] = (node_ / ".key").string();
    command.directory = folder_.path();
    command.log = node_ / "ranks" / "0.log";
    command.events = node_ / "ranks" / "0.jsonl";
    start.commands.push_back(command);
    return start;
  }
  bool is_over() {
    return find<NodeIdle>() != nullptr && hub_->output_left() == 0;
  }
  static std::string read(const os::Path& path) {
    return os::real_files().read(path).value_or("");
  }
  std::string log() const { return read(run_.rank_log(0)); }

  record::TemporaryFolder folder_;
  record::RunDirectory run_ =
      *record::RunDirectory::create(folder_.path(), "x");
  Key key_ = make_key();
  std::unique_ptr<Hub> hub_;
  os::Path node_;
  int agent_ = 0;
  std::vector<Report> reports_;
};

TEST_F(RealAgent, RunsARankAndLeavesNothing) {
  start_agent();
  struct stat facts{};
  ASSERT_EQ(::stat((node_ / ".key").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  const StartRequest start = request(
      R"(echo hello $FROM_HEAD; wc -c < $LOCKSTEP_KEY_FILE
echo '{"v":1,"kind":"phase","time":1,"rank":0,"name":"train"}' >> )" +
      (node_ / "ranks" / "0.jsonl").string() + "; exit 3");
  ASSERT_TRUE(hub_->start(0, start).has_value());
  ASSERT_TRUE(until([&] { return is_over(); }));
  EXPECT_EQ(log(), "hello yes\n65\n");
  ASSERT_NE(find<RankExited>(), nullptr);
  EXPECT_EQ(find<RankExited>()->status.code, 3);
  EXPECT_EQ(find<RankExited>()->last_lines.back(), "65");
  EXPECT_NE(find<RankEvent>(), nullptr);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::istringstream status(
      read("/proc/" + std::to_string(agent_) + "/status"));
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) {}
  EXPECT_LT(std::atol(line.c_str() + 6), 20 * 1024) << line;
#endif
  hub_->close(os::Deadline::after(seconds(60)));
  ASSERT_TRUE(until([&] { return !std::filesystem::exists(node_); }));
}

TEST_F(RealAgent, TakesItsRanksWithItWhenItIsKilled) {
  start_agent();
  ASSERT_TRUE(hub_->start(0, request("trap '' TERM; sleep 300 & echo $!; wait"))
                  .has_value());
  ASSERT_TRUE(until([&] { return log().ends_with('\n'); }));
  const int grandchild = std::atoi(log().c_str());
  ASSERT_TRUE(start_ticks(grandchild));
  ::kill(agent_, SIGKILL);
  ASSERT_TRUE(until([&] { return find<NodeLost>() != nullptr; }));
  ASSERT_TRUE(until([&] { return !start_ticks(grandchild); }));
  EXPECT_TRUE(hub_->is_lost(0));
}

class RealShim : public RealAgent {
 protected:
  void start_shim(const std::vector<std::string>& argv) {
    os::SpawnOptions options;
    options.argv = {LOCKSTEP_PROGRAM, "shim", "--"};
    options.argv.insert(options.argv.end(), argv.begin(), argv.end());
    options.environment = os::environment();
    options.environment["OMPI_COMM_WORLD_RANK"] = "0";
    options.environment["LOCKSTEP_SHIM"] = to_json(spec());
    options.output = folder_.path() / "shim.log";
    shim_ = std::move(*os::real_processes().spawn(options));
    ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value())
        << read(folder_.path() / "shim.log");
  }
  os::ExitStatus end() {
    std::optional<os::ExitStatus> status;
    EXPECT_TRUE(until([&] {
      status = shim_->poll().value_or(std::nullopt);
      return status.has_value();
    }));
    return status.value_or(os::ExitStatus{});
  }
  std::unique_ptr<os::Process> shim_;
};

TEST_F(RealShim, KeepsTheLaunchersEnvironmentAndTheRanksExitCode) {
  start_shim(
      {"bash",
       "-c",
       "echo $OMPI_COMM_WORLD_RANK $FROM_HEAD ${LOCKSTEP_SHIM:-none}; "
       "wc -c < $LOCKSTEP_KEY_FILE; exit 7"});
  ASSERT_TRUE(hub_->start(0, request("echo not this")).has_value());
  const os::ExitStatus status = end();
  EXPECT_EQ(status.code, 7) << read(folder_.path() / "shim.log");
  ASSERT_TRUE(until([&] { return is_over(); }));
  EXPECT_EQ(log(), "0 yes none\n65\n");
  EXPECT_EQ(find<NodeLost>(), nullptr);
}

TEST_F(RealShim, ForwardsTheSignalOfItsLauncher) {
  start_shim(
      {"bash",
       "-c",
       "trap 'echo bye; exit 9' TERM; echo up; "
       "while :; do sleep 0.05; done"});
  ASSERT_TRUE(hub_->start(0, request("")).has_value());
  ASSERT_TRUE(until([&] { return log() == "up\n"; }));
  ::kill(shim_->pid(), SIGTERM);
  EXPECT_EQ(end().code, 9);
  ASSERT_TRUE(until([&] { return is_over(); }));
  EXPECT_TRUE(log().ends_with("bye\n")) << log();
}

TEST(RealShimAlone, SaysWhatItNeeds) {
  record::TemporaryFolder folder;
  os::SpawnOptions options;
  options.argv = {LOCKSTEP_PROGRAM, "shim", "--", "true"};
  options.environment = os::environment();
  options.output = folder.path() / "log";
  const auto shim = std::move(*os::real_processes().spawn(options));
  EXPECT_EQ(shim->wait(os::Deadline::after(seconds(60)))->code, 2);
  EXPECT_THAT(
      os::real_files().read(folder.path() / "log").value_or(""),
      HasSubstr("LOCKSTEP_SHIM"));
}

}  // namespace
}  // namespace lockstep::launch
