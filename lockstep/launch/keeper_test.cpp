#include "lockstep/launch/keeper.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "lockstep/launch/process_tree.h"
#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool come(const std::function<bool()>& holds) {
  const auto deadline = os::Deadline::after(seconds(60));
  while (!holds() && !deadline.passed()) {
    os::real_clock().sleep_for(milliseconds(5));
  }
  return holds();
}

class KeeperTest : public ::testing::Test {
 protected:
  StartRequest ranks(const std::string& script) {
    StartRequest request;
    request.orphan_grace = milliseconds(200);
    RankCommand command;
    command.argv = {"bash", "-c", script};
    command.environment = os::environment();
    command.directory = folder_.path();
    command.log = log_;
    request.commands.push_back(command);
    return request;
  }
  // That the rank wrote to its log; 0: none yet.
  int pid() const {
    return std::atoi(os::real_files().read(log_).value_or("0").c_str());
  }

  record::TemporaryFolder folder_;
  os::Path log_ = folder_.path() / "0.log";
};

constexpr const char* kStubborn =
    "trap '' TERM; echo $$; while :; do sleep 1; done";

// All that comes until the keeper goes.
std::vector<json> listen(KeeperChannel& channel) {
  std::vector<json> messages;
  while (channel.receive(messages)) {
    pollfd news{channel.descriptor(), POLLIN, 0};
    ::poll(&news, 1, 1000);
  }
  return messages;
}

TEST_F(KeeperTest, EndsTheRanksOfAnAgentThatDoesNotRenew) {
  auto keeper = start_keeper(LOCKSTEP_PROGRAM, KeeperEars::kOpen);
  ASSERT_TRUE(keeper.has_value());
  ASSERT_TRUE(keeper->channel->send(encode_start(ranks(kStubborn))));
  ASSERT_TRUE(come([&] { return pid() > 0; }));
  // It holds for as long as it is renewed.
  const os::Instant begun = os::real_clock().now();
  while (os::real_clock().now() - begun < milliseconds(600)) {
    ASSERT_TRUE(keeper->channel->send(encode_renew(seconds(60), seconds(60))));
    os::real_clock().sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(start_ticks(pid()).has_value());
  ASSERT_TRUE(
      keeper->channel->send(encode_renew(milliseconds(1), seconds(60))));
  EXPECT_TRUE(come([&] { return !start_ticks(pid()); }));
  // A word shows that we are there: it goes, and tells why.
  ASSERT_TRUE(keeper->channel->send(encode_renew(seconds(60), seconds(60))));
  const std::vector<json> said = listen(*keeper->channel);
  ASSERT_EQ(said.size(), 3) << json(said).dump();
  EXPECT_EQ(said[1].at("type"), "lost");
  EXPECT_EQ(said[1].at("reason"), "its agent hangs or was stopped");
  EXPECT_TRUE(said[2].at("was_stopped"));
  EXPECT_TRUE(keeper->process->wait(os::Deadline::after(seconds(60))));
}

TEST_F(KeeperTest, EndsAnAgentThatStaysStopped) {
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto keeper = start_keeper(LOCKSTEP_PROGRAM, KeeperEars::kOpen);
    if (!keeper || !keeper->channel->send(encode_start(ranks(kStubborn))) ||
        !come([&] { return pid() > 0; }) ||
        !keeper->channel->send(
            encode_renew(milliseconds(1), milliseconds(50)))) {
      ::_exit(1);
    }
    ::raise(SIGSTOP);
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(agent, &status, 0), agent);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_TRUE(come([&] { return !start_ticks(pid()); }));
}

TEST_F(KeeperTest, ForgetsTheLeaseOfRanksThatEnded) {
  auto keeper = start_keeper(LOCKSTEP_PROGRAM, KeeperEars::kOpen);
  ASSERT_TRUE(keeper.has_value());
  ASSERT_TRUE(
      keeper->channel->send(encode_renew(milliseconds(1), milliseconds(1))));
  os::real_clock().sleep_for(std::chrono::seconds(1));  // nothing to end
  ASSERT_TRUE(keeper->channel->send(encode_start(ranks("nice; exit 3"))));
  std::vector<json> said;
  ASSERT_TRUE(come([&] {
    EXPECT_TRUE(keeper->channel->receive(said).has_value());
    return said.size() >= 3;
  }));
  EXPECT_EQ(said[1].at("code"), 3);
  EXPECT_FALSE(said[1].at("was_stopped"));
  EXPECT_EQ(said[2].at("type"), "idle");
  // The keeper hurries, its ranks do not.
  EXPECT_EQ(
      os::real_files().read(log_).value_or(""),
      std::to_string(::getpriority(PRIO_PROCESS, 0)) + "\n");
}

}  // namespace
}  // namespace lockstep::launch
