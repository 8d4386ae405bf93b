#include "lockstep/launch/hang.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

RankPlace
at(int rank, const std::string& state, const std::string& stack = "") {
  return {rank, state, stack, ""};
}

// A run of some ranks that the test plays; places are answered from a table.
class HangTest : public ::testing::Test {
 protected:
  void start(int ranks) {
    ranks_ = ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      watch_.take(RankStarted{rank, 100 + rank}, host(rank), now_);
      places_[rank] = at(rank, "sleeping in futex_wait_queue");
    }
  }
  static std::string host(int rank) { return "n" + std::to_string(rank); }
  void step(int rank, int64_t number) {
    wire::Iteration done;
    done.step = number;
    wire::Event event;
    event.rank = rank;
    event.body = done;
    watch_.take(RankEvent{event, ""}, host(rank), now_);
  }
  void train(int count) {
    for (int i = 0; i < count; ++i) {
      pass(milliseconds(100));
      ++step_;
      for (int rank = 0; rank < ranks_; ++rank) {
        step(rank, step_);
      }
    }
  }
  void pass(Duration time) {
    const os::Instant end = now_ + time;
    while (now_ < end) {
      now_ += milliseconds(100);
      const HangNews news = watch_.look(now_);
      for (const int rank : news.inspect) {
        asked_.push_back(rank);
        if (places_.contains(rank)) {
          watch_.take(places_[rank], host(rank), now_);
        }
      }
      if (news.hang) {
        hangs_.push_back(*news.hang);
      }
      if (!news.resumed.empty()) {
        resumed_.push_back(news.resumed);
      }
    }
  }

  HangWatch watch_;
  os::Instant now_{std::chrono::hours(1)};
  std::map<int, RankPlace> places_;
  std::vector<int> asked_;
  std::vector<Hang> hangs_;
  std::vector<std::string> resumed_;
  int ranks_ = 0;
  int64_t step_ = 0;
};

TEST_F(HangTest, NamesTheStoppedRankAmongEquals) {
  start(4);
  train(50);
  places_[2] = at(2, "stopped (by SIGSTOP or a terminal)");
  pass(seconds(12));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 2);
  EXPECT_EQ(hangs_[0].host, "n2");
  EXPECT_EQ(hangs_[0].pid, 102);
  EXPECT_FALSE(hangs_[0].likely);
  EXPECT_EQ(asked_.size(), 4);
  const std::string text = hangs_[0].to_string();
  EXPECT_EQ(text.find("rank 2 hangs on n2 (pid 102): no step for 10"), 0)
      << text;
  EXPECT_NE(
      text.find("(usually 100 ms), at step 50 as all others; stopped"),
      std::string::npos)
      << text;
}

TEST_F(HangTest, NamesTheRankBehindWhateverItsPlace) {
  start(3);
  train(50);
  step(0, 51);
  step(2, 51);
  places_.clear();  // nobody answers
  pass(seconds(40));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 1);
  EXPECT_EQ(asked_, std::vector<int>{1});
  EXPECT_NE(
      hangs_[0].to_string().find("at step 50 while others are at 51"),
      std::string::npos);
}

TEST_F(HangTest, NamesTheSleeperWhileOthersWaitInACollective) {
  start(3);
  train(50);
  places_[0] =
      at(0, "sleeping in ep_poll", "gloo::transport::tcp::wait (a.cc:1)\n");
  places_[1] = at(1, "sleeping in hrtimer_nanosleep", "load (data.py:7)\n");
  places_[2] = at(2, "sleeping in futex_wait_queue", "all_reduce (x.py:3)\n");
  pass(seconds(12));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 1);
  EXPECT_TRUE(hangs_[0].likely);
  EXPECT_EQ(hangs_[0].details().front(), "load (data.py:7)");
}

TEST_F(HangTest, GivesABusyRankMoreTime) {
  start(2);
  train(50);
  places_[0] = at(0, "running, 99% of a core", "evaluate (train.py:9)\n");
  pass(minutes(4));
  EXPECT_TRUE(hangs_.empty());
  EXPECT_GT(asked_.size(), 2);
  pass(minutes(2));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 0);
}

TEST_F(HangTest, AsksAlsoWhoPassesItsLimitLater) {
  start(4);
  train(50);
  pass(seconds(3));
  step(2, 50);  // heard of later than the others
  step(3, 50);
  places_[3] = at(3, "stopped (by SIGSTOP or a terminal)");
  pass(seconds(9));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 3);
}

TEST_F(HangTest, DoesNotExcuseSpinningInACollective) {
  start(2);
  train(50);
  places_[0] = at(0, "running, 99% of a core", "ncclAllReduce (a.cc:1)\n");
  places_[1] = at(1, "sleeping in hrtimer_nanosleep");
  pass(seconds(12));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 1);
}

TEST_F(HangTest, FindsARankThatShowsNoSteps) {
  start(2);
  for (int i = 1; i <= 50; ++i) {
    pass(milliseconds(100));
    step(0, i);  // only rank 0 is read by a pattern
  }
  places_[1] = at(1, "stopped (by SIGSTOP or a terminal)");
  pass(seconds(12));
  ASSERT_EQ(hangs_.size(), 1);
  EXPECT_EQ(hangs_[0].rank, 1);
  EXPECT_EQ(hangs_[0].pid, 101);
}

TEST_F(HangTest, TellsOnceAndTellsTheEnd) {
  start(2);
  train(50);
  pass(minutes(30));
  EXPECT_EQ(hangs_.size(), 1);
  train(20);
  EXPECT_EQ(resumed_.size(), 1);
  pass(minutes(100));
  EXPECT_EQ(hangs_.size(), 2);
}

TEST_F(HangTest, StaysSilentWhenTheRankGoesOnWhileItIsAsked) {
  start(2);
  train(50);
  places_.clear();
  pass(seconds(12));  // asked, no answer yet
  EXPECT_FALSE(asked_.empty());
  train(20);
  EXPECT_TRUE(hangs_.empty());
  EXPECT_TRUE(resumed_.empty());
}

TEST_F(HangTest, DoesNotBlameTheRunForItsOwnSleep) {
  start(1);
  train(50);
  now_ += minutes(90);  // we were stopped, and the ranks with us
  pass(seconds(5));
  EXPECT_TRUE(hangs_.empty());
  EXPECT_TRUE(asked_.empty());
}

TEST_F(HangTest, IgnoresSetupAndRanksThatEnded) {
  watch_.take(RankStarted{kSetupRank, 9}, "n0", now_);
  start(2);
  train(50);
  for (int rank = 0; rank < 2; ++rank) {
    RankExited exit;
    exit.rank = rank;
    watch_.take(exit, host(rank), now_);
  }
  pass(minutes(60));
  EXPECT_TRUE(hangs_.empty());
}

TEST(Suspicion, OrdersPlaces) {
  const int stopped = suspicion(at(0, "stopped (x)", "all_reduce (a.py:1)\n"));
  const int device = suspicion(at(0, "waiting for a device in nfs_wait"));
  const int sleeps = suspicion(at(0, "sleeping in hrtimer_nanosleep"));
  const int socket = suspicion(at(0, "sleeping in ep_poll"));
  const int group = suspicion(at(0, "sleeping in x", "PMPI_Allreduce\n"));
  EXPECT_GT(stopped, device);
  EXPECT_GT(device, sleeps);
  EXPECT_GT(sleeps, socket);
  EXPECT_GT(socket, group);
  // A name far outside says nothing about what the rank does now.
  std::string deep;
  for (int i = 0; i < 12; ++i) {
    deep += "f (a.py:1)\n";
  }
  EXPECT_GT(suspicion(at(0, "sleeping in x", deep + "all_reduce\n")), group);
}

}  // namespace
}  // namespace lockstep::launch
