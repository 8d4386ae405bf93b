#include "lockstep/launch/supervisor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/launch/keeper_protocol.h"
#include "lockstep/launch/memory_facts.h"

namespace lockstep::launch {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(Cap, LeavesTimeForACheckpoint) {
  Job job;
  job.grace = seconds(60);
  EXPECT_FALSE(cap_of(job, {}));
  job.max_duration = hours(4);
  auto cap = cap_of(job, {});
  EXPECT_EQ(cap->end, hours(4));
  EXPECT_EQ(cap->stop, hours(4) - seconds(60));
  job.max_duration = seconds(10);
  EXPECT_EQ(cap_of(job, {})->stop, seconds(9));
}

TEST(Cap, TakesTheSmallerOfMoneyAndTime) {
  Job job;
  job.max_duration = hours(4);
  job.budget = Money::from_dollars(1);
  auto cap = cap_of(job, Money::from_dollars(0.5));
  EXPECT_EQ(cap->end, hours(2));
  EXPECT_EQ(cap->reason, "budget $1.00");
  EXPECT_EQ(cap_of(job, Money::from_dollars(0.1))->end, hours(4));
  EXPECT_EQ(cap_of(job, Money())->end, hours(4));
}

TEST(Cap, LeavesTimeToStoreAndGiveBack) {
  Job job;
  job.grace = seconds(60);
  job.budget = Money::from_dollars(1);
  const CapTerms terms{seconds(120), hours(1), {}};
  // The machines end before the money at this price does.
  auto cap = cap_of(job, Money::from_dollars(0.5), terms);
  EXPECT_EQ(cap->end, hours(1) - seconds(120));
  EXPECT_EQ(cap->stop, cap->end - seconds(60));
  EXPECT_EQ(cap->reason, "budget $1.00");
  cap = cap_of(job, Money::from_dollars(2), terms);
  EXPECT_EQ(cap->end, seconds(1800 - 120));
  // Not most of a short time.
  cap = cap_of(job, {}, {seconds(120), seconds(40), {}});
  EXPECT_EQ(cap->end, seconds(30));
}

TEST(Cap, ABudgetPaysForWhatLeavesTheMachines) {
  Job job;
  job.budget = Money::from_dollars(1);
  CapTerms terms;
  terms.gigabyte = Money::from_dollars(0.1);
  const Money price = Money::from_dollars(0.5);
  EXPECT_EQ(cap_of(job, price, terms)->end, hours(2));
  // Half of it.
  const Bytes five{5'000'000'000};
  EXPECT_EQ(cap_of(job, price, terms, five)->end, hours(1));
  EXPECT_EQ(
      cap_of(job, price, terms, five)->reason,
      "budget $1.00, of which 4.7 GiB that leave the cloud take $0.5000");
  EXPECT_EQ(
      cap_of(job, price, terms, Bytes{900'000'000})->reason, "budget $1.00");
  terms.life = seconds(5400);  // with disks, the machines' own timers say
  EXPECT_EQ(cap_of(job, price, terms, five)->end, seconds(1800));
  // Time is time.
  job.max_duration = seconds(1800);
  terms.life.reset();
  const auto cap = cap_of(job, price, terms, five);
  EXPECT_EQ(cap->end, seconds(1800));
  EXPECT_EQ(cap->reason, "max_duration 30m 00s");
  EXPECT_EQ(cap_of(job, price, terms, Bytes{20'000'000'000})->end, Duration(0));
}

TEST(Cap, WhatMayStillLeaveIsWhatTheBudgetHasLeft) {
  Job job;
  CapTerms terms;
  terms.gigabyte = Money::from_dollars(0.1);
  EXPECT_FALSE(affordable(job, Money::from_dollars(5), terms));  // no budget
  job.budget = Money::from_dollars(1);
  EXPECT_EQ(
      affordable(job, Money::from_dollars(0.5), terms)->count, 5'000'000'000);
  EXPECT_EQ(affordable(job, Money::from_dollars(1.2), terms)->count, 0);
  EXPECT_FALSE(affordable(job, Money::from_dollars(5), {}));  // it is free
}

TEST(Cap, GivesTheExitCodesOfTheManual) {
  EXPECT_EQ(exit_code(RunEnd::kDone), 0);
  EXPECT_EQ(exit_code(RunEnd::kFailed), 1);
  EXPECT_EQ(exit_code(RunEnd::kLost), 3);
  EXPECT_EQ(exit_code(RunEnd::kCapped), 4);
  EXPECT_EQ(exit_code(RunEnd::kTimeout), 124);
  EXPECT_EQ(exit_code(RunEnd::kInterrupted), 130);
}

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    left_ = std::make_unique<KeeperChannel>(ends[0]);
    right_ = std::make_unique<KeeperChannel>(ends[1]);
  }
  std::unique_ptr<KeeperChannel> left_, right_;
};

TEST_F(ChannelTest, CarriesAStartWithBytesThatAreNotText) {
  StartRequest request;
  request.stop_signal = 10;
  request.orphan_grace = seconds(3);
  RankCommand& command = request.commands.emplace_back();
  command.rank = 3;
  command.argv = {"x", "\xff\xfe"};
  command.environment = {{"A", "\x80"}};
  command.directory = "/d";
  command.log = "/l";
  ASSERT_TRUE(left_->send(encode_start(request)).has_value());
  std::vector<nlohmann::json> messages;
  ASSERT_TRUE(right_->receive(messages).has_value());
  ASSERT_EQ(messages.size(), 1);
  const StartRequest got = decode_start(messages[0]);
  EXPECT_EQ(got.stop_signal, 10);
  EXPECT_EQ(got.orphan_grace, seconds(3));
  EXPECT_EQ(got.commands[0].rank, 3);
  EXPECT_EQ(got.commands[0].argv, request.commands[0].argv);
  EXPECT_EQ(got.commands[0].environment, request.commands[0].environment);
}

TEST_F(ChannelTest, KeepsHalfAFrameForLater) {
  const std::string half = std::string("\x05\0\0\0", 4) + "ab";
  ASSERT_EQ(
      ::write(left_->descriptor(), half.data(), half.size()),
      static_cast<ssize_t>(half.size()));
  std::vector<nlohmann::json> messages;
  EXPECT_TRUE(right_->receive(messages).has_value());
  EXPECT_TRUE(messages.empty());
}

TEST_F(ChannelTest, SeesThePeerGoAndRefusesGarbage) {
  std::vector<nlohmann::json> messages;
  const std::string garbage(64, '\xff');
  ASSERT_EQ(::write(left_->descriptor(), garbage.data(), garbage.size()), 64);
  EXPECT_FALSE(right_->receive(messages).has_value());
  left_.reset();
  EXPECT_FALSE(right_->receive(messages).has_value());
  EXPECT_TRUE(messages.empty());
}

TEST(MemoryFacts, ReadsCountersOfBothCgroups) {
  EXPECT_EQ(parse_oom_kills("low 0\nhigh 0\nmax 4\noom 2\noom_kill 3\n"), 3);
  EXPECT_EQ(
      parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), 7);
  EXPECT_EQ(parse_oom_kills(""), 0);
}

TEST(MemoryFacts, FindsTheVictimInTheKernelLog) {
  const std::string log =
      "<6>[  10.000000] boot\n"
      "<3>[ 100.500000] Memory cgroup out of memory: Killed process 42 (x) "
      "total-vm:1kB\n";
  EXPECT_TRUE(log_names_victim(log, 42, 50));
  EXPECT_FALSE(log_names_victim(log, 42, 200));
  EXPECT_FALSE(log_names_victim(log, 4, 0));
}

}  // namespace
}  // namespace lockstep::launch
