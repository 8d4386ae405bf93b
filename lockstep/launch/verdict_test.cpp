#include "lockstep/launch/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launch {
namespace {

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
