#include "lockstep/launch/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

RankExited exited(int rank, int code, int signal, int batch) {
  RankExited exit;
  exit.rank = rank;
  exit.pid = 100 + rank;
  exit.batch = batch;
  exit.status.code = code;
  exit.status.signal = signal;
  return exit;
}

TEST(Verdict, NamesTheFirstFailure) {
  Verdict verdict;
  verdict.take(exited(0, 0, 0, 1), "a");
  EXPECT_FALSE(verdict.failure());
  verdict.take(exited(2, 3, 0, 2), "a");
  verdict.take(exited(1, 0, SIGSEGV, 3), "a");
  ASSERT_TRUE(verdict.failure());
  EXPECT_EQ(verdict.failure()->rank, 2);
  EXPECT_EQ(
      verdict.failure()->to_string(),
      "rank 2 failed on a (pid 102): exit code 3");
}

TEST(Verdict, PrefersTheCauseAmongEndsOfOneMoment) {
  Verdict verdict;
  verdict.take(exited(0, 1, 0, 7), "a");
  verdict.take(exited(1, 0, SIGSEGV, 7), "a");
  verdict.take(exited(2, 0, SIGABRT, 7), "a");
  EXPECT_EQ(verdict.failure()->rank, 1);
}

TEST(Verdict, PrefersAnyoneToARankThatLostAPeer) {
  Verdict verdict;
  verdict.take(0, wire::Exit{3, 0, "rank 1 is gone"});
  verdict.take(exited(0, 3, 0, 7), "a");
  ASSERT_TRUE(verdict.failure());
  EXPECT_TRUE(verdict.failure()->consequence);
  verdict.take(1, wire::Exit{1, 0, "loss is NaN"});
  verdict.take(exited(1, 1, 0, 9), "a");
  EXPECT_EQ(verdict.failure()->rank, 1);
  EXPECT_EQ(verdict.failure()->reason, "loss is NaN");
  EXPECT_FALSE(verdict.failure()->consequence);
}

TEST(Verdict, TakesCodeThreeOfAProgramThatSaysNothingAsItsOwn) {
  Verdict verdict;
  verdict.take(exited(0, 3, 0, 7), "a");
  verdict.take(exited(1, 1, 0, 9), "a");
  EXPECT_EQ(verdict.failure()->rank, 0);
}

TEST(Verdict, NeverNamesARankThatWeStopped) {
  Verdict verdict;
  RankExited stopped = exited(0, 0, SIGTERM, 1);
  stopped.was_stopped = true;
  verdict.take(stopped, "a");
  EXPECT_FALSE(verdict.failure());
}

TEST(Verdict, TellsOutOfMemoryApart) {
  Verdict verdict;
  RankExited exit = exited(1, 0, SIGKILL, 1);
  exit.out_of_memory = true;
  verdict.take(exit, "b");
  EXPECT_EQ(
      verdict.failure()->to_string(),
      "rank 1 failed on b (pid 101): out of memory, signal 9 (Killed)");
}

TEST(Verdict, KnowsRefusedProgramsAndLostNodes) {
  Verdict refused;
  refused.take(RankRefused{1, "cannot run 'x': no such file"}, "a");
  EXPECT_EQ(
      refused.failure()->to_string(),
      "rank 1 did not start on a: cannot run 'x': no such file");
  Verdict lost;
  lost.take(NodeLost{"cut off"}, "a");
  lost.take(exited(0, 1, 0, 1), "a");
  EXPECT_TRUE(lost.failure()->lost);
  EXPECT_EQ(lost.failure()->to_string(), "node a was lost: cut off");
}

TEST(Verdict, NumbersOfBatchesOfTwoNodesDoNotMatter) {
  // Each keeper counts for itself: 9 on one node may come before 2 on another.
  Verdict verdict;
  verdict.take(exited(0, 1, 0, 9), "a");
  EXPECT_FALSE(verdict.failure()->certain);
  verdict.take(exited(1, 0, SIGKILL, 2), "b");
  EXPECT_EQ(verdict.failure()->rank, 1);
  EXPECT_TRUE(verdict.failure()->certain);
  verdict.take(exited(2, 0, SIGKILL, 2), "c");
  EXPECT_EQ(verdict.failure()->rank, 1);
}

// As a keeper of its own host saw it, on the head's clock.
RankExited
ended(int rank, int code, int signal, milliseconds at, int keeper = 1) {
  RankExited exit = exited(rank, code, signal, 1);
  exit.keeper = keeper;
  exit.ended = os::Instant(std::chrono::hours(1) + at);
  return exit;
}

TEST(Verdict, GoesByTheTimeOfTheEndNotOfTheReport) {
  Verdict verdict;
  verdict.take(ended(0, 1, 0, milliseconds(9)), "a");
  verdict.take(ended(1, 1, 0, milliseconds(7)), "b");
  EXPECT_EQ(verdict.failure()->rank, 1);
  verdict.take(ended(3, 1, 0, milliseconds(4)), "c");
  verdict.take(ended(2, 1, 0, milliseconds(6)), "d");
  EXPECT_EQ(verdict.failure()->rank, 3);
}

TEST(Verdict, PrefersTheLikelierCauseOfOneMomentOnly) {
  // A keeper on a busy host saw the kill late; peers were quicker to go.
  Verdict busy;
  busy.take(ended(0, 1, 0, milliseconds(0)), "a");
  busy.take(ended(3, 0, SIGKILL, milliseconds(60)), "b");
  EXPECT_EQ(busy.failure()->rank, 3);
  RankExited memory = ended(2, 0, SIGKILL, milliseconds(80));
  memory.out_of_memory = true;
  busy.take(memory, "c");
  EXPECT_EQ(busy.failure()->rank, 2);
  // Much later it is another story, also when its report comes first.
  Verdict later;
  later.take(ended(3, 0, SIGKILL, milliseconds(400)), "b");
  EXPECT_TRUE(later.failure()->certain);
  later.take(ended(0, 1, 0, milliseconds(0)), "a");
  EXPECT_EQ(later.failure()->rank, 0);
}

// An interpreter that failed tears its connections, then takes its time.
TEST(Verdict, GoesByLastWordsOfPlainExits) {
  RankExited cause = ended(3, 7, 0, milliseconds(90));
  cause.spoke = cause.ended - milliseconds(80);
  cause.last_lines = {"step 14", "no such batch"};
  RankExited peer = ended(0, 1, 0, milliseconds(60));
  peer.spoke = peer.ended - milliseconds(20);
  peer.last_lines = {"step 13", "step 14", "a peer is gone"};
  peer.batch = 2;
  for (const char* host : {"a", "b"}) {
    Verdict verdict;
    verdict.take(peer, "a");
    verdict.take(cause, host);
    EXPECT_EQ(verdict.failure()->rank, 3) << host;
  }
  // What it wrote as always says nothing about its end.
  peer.last_lines.pop_back();
  cause.ended = peer.ended + milliseconds(1);
  cause.spoke = peer.ended - milliseconds(10);
  Verdict silent;
  silent.take(peer, "a");
  silent.take(cause, "b");
  EXPECT_EQ(silent.failure()->rank, 3);
  // Files keep time by ticks: within one the end decides.
  peer = ended(0, 1, 0, milliseconds(9));
  cause = ended(3, 1, 0, milliseconds(5));
  for (RankExited* exit : {&peer, &cause}) {
    exit->last_lines = {"gone"};
  }
  peer.spoke = peer.ended - milliseconds(7);
  cause.spoke = cause.ended - milliseconds(3);
  Verdict tick;
  tick.take(peer, "a");
  tick.take(cause, "b");
  EXPECT_EQ(tick.failure()->rank, 3);
}

TEST(Verdict, TrustsAKeeperAboutItsOwnRanks) {
  Verdict one;
  RankExited second = ended(1, 0, SIGSEGV, milliseconds(2));
  second.batch = 2;
  one.take(second, "a");
  one.take(ended(0, 1, 0, milliseconds(1)), "a");
  EXPECT_EQ(one.failure()->rank, 0);
  // Shims: a keeper each, also on one host.
  Verdict two;
  two.take(ended(0, 1, 0, milliseconds(1), 7), "a");
  two.take(ended(1, 0, SIGSEGV, milliseconds(2), 8), "a");
  EXPECT_EQ(two.failure()->rank, 1);
}

TEST(Verdict, BlamesNoRankWhoseLastWordsBlameAPeer) {
  // Python closes its sockets long before it is gone.
  RankExited first = ended(0, 1, 0, milliseconds(0));
  first.last_lines = {"RuntimeError: [..] Connection closed by peer [::1]:9"};
  RankExited second = ended(1, 1, 0, milliseconds(40));
  second.batch = 2;
  second.last_lines = {"ValueError: no such batch"};
  for (const char* host : {"a", "b"}) {
    Verdict verdict;
    verdict.take(first, "a");
    EXPECT_TRUE(verdict.failure()->blames_peer);
    verdict.take(second, host);
    EXPECT_EQ(verdict.failure()->rank, 1) << host;
    EXPECT_FALSE(verdict.failure()->blames_peer);
  }
  Verdict alone;
  alone.take(first, "a");
  RankExited later = ended(1, 1, 0, milliseconds(900));
  later.batch = 2;
  alone.take(later, "a");
  EXPECT_EQ(alone.failure()->rank, 0);
}

TEST(Verdict, KnowsWhetherARankFellBeforeItsNodeWasLost) {
  const auto lost = [](milliseconds since) {
    return NodeLost{
        "its agent is gone", os::Instant(std::chrono::hours(1) + since)};
  };
  Verdict before;
  before.take(ended(3, 1, 0, milliseconds(0)), "b");
  before.take(lost(milliseconds(500)), "b");
  EXPECT_EQ(before.failure()->rank, 3);
  Verdict after;
  after.take(ended(0, 0, SIGSEGV, milliseconds(900)), "a");
  after.take(lost(milliseconds(500)), "b");
  EXPECT_TRUE(after.failure()->lost);
  // The kernel took rank and agent.
  Verdict memory;
  RankExited exit = ended(3, 0, SIGKILL, milliseconds(0));
  exit.out_of_memory = true;
  memory.take(exit, "b");
  memory.take(lost(milliseconds(20)), "b");
  EXPECT_EQ(memory.failure()->rank, 3);
}

TEST(Verdict, KeepsWhatWasTold) {
  Verdict verdict;
  verdict.take(exited(0, 1, 0, 1), "a");
  verdict.settle();
  verdict.take(exited(1, 0, SIGSEGV, 1), "b");
  verdict.take(exited(2, 0, SIGSEGV, 1), "a");
  EXPECT_EQ(verdict.failure()->rank, 0);
}

TEST(Verdict, PrefersALostNodeToTheRanksThatMissIt) {
  Verdict verdict;
  verdict.take(0, wire::Exit{3, 0, "rank 1 does not answer"});
  verdict.take(exited(0, 3, 0, 1), "a");
  EXPECT_TRUE(verdict.failure()->consequence);
  verdict.take(NodeLost{"silent for 5 s"}, "b");
  EXPECT_TRUE(verdict.failure()->lost);
  EXPECT_EQ(verdict.failure()->host, "b");
}

TEST(Verdict, NamesARankThatHangs) {
  Verdict verdict;
  Hang hang;
  hang.rank = 1;
  hang.host = "b";
  hang.pid = 42;
  hang.step = 120;
  hang.ahead = 121;
  hang.others = 1;
  hang.silent = std::chrono::seconds(31);
  hang.usual = std::chrono::milliseconds(200);
  hang.place.state = "sleeping in futex_wait_queue";
  hang.place.stack = "f (a.py:1)\n";
  verdict.take(hang);
  // What it does when it is ended says nothing new.
  verdict.take(exited(1, 0, SIGSEGV, 1), "b");
  EXPECT_EQ(
      verdict.failure()->to_string(),
      "rank 1 hangs on b (pid 42): no step for 31.0 s (usually 200 ms), at "
      "step 120 while others are at 121; sleeping in futex_wait_queue");
  EXPECT_EQ(
      verdict.failure()->last_lines, std::vector<std::string>{"f (a.py:1)"});
}

}  // namespace
}  // namespace lockstep::launch
