#include "lockstep/launch/pace.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::launch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// A run that is played with times of its own.
class PaceTest : public ::testing::Test {
 protected:
  void start(int ranks) {
    ranks_ = ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      pace_.started(rank, now_);
    }
  }
  void say(int rank, wire::EventBody body) {
    wire::Event event;
    event.rank = rank;
    event.body = std::move(body);
    pace_.take(event, now_);
  }
  void step(int rank, int64_t number) {
    wire::Iteration done;
    done.step = number;
    say(rank, done);
  }
  // Passes time as a supervisor does, looking ten times a second.
  bool stalls_within(Duration time) {
    bool stalled = false;
    const os::Instant end = now_ + time;
    while (now_ < end) {
      now_ += milliseconds(100);
      stalled = stalled || pace_.check(now_).has_value();
    }
    return stalled;
  }
  // All ranks take `count` steps, each `pace` apart.
  void train(int count, Duration pace) {
    for (int i = 0; i < count; ++i) {
      now_ += pace;
      ++step_;
      for (int rank = 0; rank < ranks_; ++rank) {
        step(rank, step_);
      }
      ASSERT_FALSE(pace_.check(now_)) << "at step " << step_;
    }
  }

  Pace pace_;
  os::Instant now_{hours(1)};
  int ranks_ = 0;
  int64_t step_ = 0;
};

TEST_F(PaceTest, SaysNothingOfAProgramThatSaysNothing) {
  start(4);
  EXPECT_FALSE(stalls_within(hours(3)));
}

TEST_F(PaceTest, WaitsLongForTheFirstStep) {
  start(2);
  say(0, wire::Init{});
  say(1, wire::Init{});
  EXPECT_FALSE(stalls_within(minutes(9)));
  EXPECT_TRUE(stalls_within(minutes(2)));
}

TEST_F(PaceTest, FollowsThePaceOfQuickSteps) {
  start(2);
  train(100, milliseconds(50));
  EXPECT_FALSE(stalls_within(seconds(9)));
  EXPECT_TRUE(stalls_within(seconds(2)));
  const auto stall = pace_.check(now_);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->ranks.size(), 2);
  EXPECT_EQ(stall->ranks[0].step, 100);
  EXPECT_EQ(stall->ahead, 100);
  EXPECT_FALSE(stall->behind);
  EXPECT_FALSE(stall->firm);
  EXPECT_EQ(stall->usual, milliseconds(50));
  EXPECT_TRUE(stalls_within(minutes(5)));
  EXPECT_TRUE(pace_.check(now_)->firm);
}

TEST_F(PaceTest, FollowsThePaceOfSlowSteps) {
  start(2);
  train(20, seconds(30));
  EXPECT_FALSE(stalls_within(minutes(9)));
  EXPECT_TRUE(stalls_within(minutes(2)));
}

TEST_F(PaceTest, IsNotMisledByOneSlowStep) {
  start(1);
  train(30, milliseconds(100));
  train(1, seconds(6));
  train(30, milliseconds(100));
  // Three times the longest pause.
  EXPECT_FALSE(stalls_within(seconds(17)));
  EXPECT_TRUE(stalls_within(seconds(2)));
}

TEST_F(PaceTest, ForgivesSlowFirstSteps) {
  start(2);
  train(1, minutes(4));    // compiles
  train(1, seconds(100));  // and again
  train(3, seconds(40));
  train(200, milliseconds(20));
  EXPECT_TRUE(stalls_within(minutes(4)));
}

TEST_F(PaceTest, ForgivesEveryPaceThatGetsSlowerSlowly) {
  start(1);
  double pace = 0.01;
  for (int i = 0; i < 300; ++i) {
    train(1, from_seconds(pace));
    pace *= 1.03;
  }
}

TEST_F(PaceTest, ForgivesPausesThatHaveAName) {
  start(2);
  train(50, milliseconds(100));
  for (int rank = 0; rank < 2; ++rank) {
    say(rank, wire::Phase{"validation"});
  }
  EXPECT_FALSE(stalls_within(minutes(4)));
  for (int rank = 0; rank < 2; ++rank) {
    say(rank, wire::Phase{"train"});
  }
  // The pace of training did not change by it.
  EXPECT_TRUE(stalls_within(seconds(11)));
}

TEST_F(PaceTest, SeesAHangInValidation) {
  start(1);
  train(50, milliseconds(100));
  say(0, wire::Phase{"validation"});
  EXPECT_TRUE(stalls_within(minutes(6)));
  EXPECT_EQ(pace_.check(now_)->ranks[0].phase, "validation");
}

TEST_F(PaceTest, TakesACheckpointForProgress) {
  start(1);
  train(50, milliseconds(100));
  for (int i = 0; i < 10; ++i) {
    ASSERT_FALSE(stalls_within(seconds(9)));
    say(0, wire::Checkpoint{});
  }
}

TEST_F(PaceTest, DoesNotTakeResourceEventsForProgress) {
  start(1);
  train(50, milliseconds(100));
  bool stalled = false;
  for (int i = 0; i < 15; ++i) {
    say(0, wire::Resource{});
    stalled = stalls_within(seconds(1)) || stalled;
  }
  EXPECT_TRUE(stalled);
}

TEST_F(PaceTest, LearnsPausesWithoutAName) {
  start(1);
  train(50, milliseconds(100));
  // The first long one may be told; then it is known.
  EXPECT_TRUE(stalls_within(seconds(60)));
  train(1, milliseconds(100));
  train(500, milliseconds(100));
  EXPECT_FALSE(stalls_within(seconds(170)));
  // Also by the next generation.
  pace_.begin();
  start(1);
  train(20, milliseconds(100));
  EXPECT_FALSE(stalls_within(seconds(170)));
}

TEST_F(PaceTest, NamesTheRankThatIsBehind) {
  start(4);
  train(20, milliseconds(100));
  for (const int rank : {0, 1, 3}) {
    step(rank, 21);
  }
  EXPECT_TRUE(stalls_within(seconds(11)));
  const auto stall = pace_.check(now_);
  EXPECT_TRUE(stall->behind);
  EXPECT_EQ(stall->ranks[0].rank, 2);
  EXPECT_EQ(stall->ranks[0].step, 20);
  EXPECT_EQ(stall->ahead, 21);
  EXPECT_EQ(stall->ranks.size(), 4);
}

TEST_F(PaceTest, SeesOneHangWhileOthersGoOn) {
  start(3);
  train(20, milliseconds(100));
  bool stalled = false;
  for (int i = 0; i < 150 && !stalled; ++i) {
    now_ += milliseconds(100);
    step(0, 21 + i);
    step(2, 21 + i);
    stalled = pace_.check(now_).has_value();
  }
  ASSERT_TRUE(stalled);
  const auto stall = pace_.check(now_);
  EXPECT_EQ(stall->ranks.size(), 1);
  EXPECT_EQ(stall->ranks[0].rank, 1);
  EXPECT_TRUE(stall->behind);
}

TEST_F(PaceTest, ForgetsRanksThatEnded) {
  start(2);
  train(20, milliseconds(100));
  pace_.ended(0);
  pace_.ended(1);
  EXPECT_FALSE(stalls_within(hours(1)));
}

TEST_F(PaceTest, GivesTimeAfterTheLastStep) {
  start(1);
  wire::Init init;
  init.facts["total_steps"] = "30";
  say(0, init);
  train(30, milliseconds(100));
  EXPECT_FALSE(stalls_within(minutes(4)));
  EXPECT_TRUE(stalls_within(minutes(2)));
}

TEST_F(PaceTest, TakesAnOrder) {
  pace_ = Pace(seconds(2));
  start(2);
  say(0, wire::Init{});
  EXPECT_FALSE(stalls_within(minutes(5)));  // it counts from the first step
  train(1, seconds(1));
  EXPECT_TRUE(stalls_within(seconds(3)));
  EXPECT_TRUE(pace_.check(now_)->firm);
  train(1, seconds(0));
  say(0, wire::Phase{"validation"});
  say(1, wire::Phase{"validation"});
  EXPECT_FALSE(stalls_within(minutes(4)));
}

TEST_F(PaceTest, ForgivesItsOwnSleep) {
  start(1);
  train(20, milliseconds(100));
  now_ += hours(2);
  pace_.forgive(hours(2));
  EXPECT_FALSE(pace_.check(now_));
  EXPECT_TRUE(stalls_within(seconds(11)));
}

TEST_F(PaceTest, NeverAccusesARankWithAnUnsteadyPace) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> spread(0, 0.7);
  for (int trace = 0; trace < 50; ++trace) {
    pace_.begin();
    start(3);
    step_ = 0;
    const double usual = 0.01 * std::pow(1.2, trace);
    for (int i = 0; i < 400; ++i) {
      train(1, from_seconds(usual * spread(random)));
      ASSERT_FALSE(HasFatalFailure()) << trace;
      if (i % 100 == 99) {
        for (int rank = 0; rank < 3; ++rank) {
          say(rank, wire::Phase{"validation"});
        }
        ASSERT_FALSE(stalls_within(seconds(100)));
        for (int rank = 0; rank < 3; ++rank) {
          say(rank, wire::Phase{"train"});
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::launch
