#include "lockstep/forest/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "lockstep/collective/group_fixture.h"

namespace lockstep::forest {
namespace {

using collective::Communicator;
using collective::GroupCase;
using collective::Mode;
using collective::run_group;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<size_t> sizes(const Turns& turns, size_t ranks) {
  std::vector<size_t> result;
  for (size_t rank = 0; rank < ranks; ++rank) {
    result.push_back(turns.of(rank).size());
  }
  return result;
}

void expect_each_once(const Turns& turns, size_t ranks, size_t trees) {
  std::multiset<size_t> seen;
  for (size_t rank = 0; rank < ranks; ++rank) {
    seen.insert(turns.of(rank).begin(), turns.of(rank).end());
  }
  ASSERT_EQ(seen.size(), trees);
  for (size_t tree = 0; tree < trees; ++tree) {
    EXPECT_EQ(seen.count(tree), 1U) << tree;
  }
}

TEST(Turns, FillTheEmptiestFirst) {
  Turns turns(7, 3);
  const TurnReport start[] = {{0, 2}, {0, 2}, {0, 2}};
  turns.hand_out(start);
  EXPECT_EQ(sizes(turns, 3), (std::vector<size_t>{2, 2, 2}));
  const TurnReport later[] = {{0, 2}, {1, 2}, {2, 2}};
  turns.hand_out(later);
  EXPECT_EQ(sizes(turns, 3), (std::vector<size_t>{2, 2, 3}));
  EXPECT_FALSE(turns.all_finished());
  const TurnReport last[] = {{2, 2}, {2, 2}, {3, 2}};
  turns.hand_out(last);
  EXPECT_TRUE(turns.all_finished());
  expect_each_once(turns, 3, 7);
}

TEST(Turns, FewTreesGoToAllRanksEvenly) {
  Turns turns(4, 4);
  const TurnReport start[] = {{0, 8}, {0, 8}, {0, 8}, {0, 8}};
  turns.hand_out(start);
  EXPECT_EQ(sizes(turns, 4), (std::vector<size_t>{1, 1, 1, 1}));
}

// Ranks of any speed: whoever has nothing left to do waits for no more than
// the trees that another had at hand.
TEST(Turns, FollowTheSpeedOfEachRank) {
  Turns turns(300, 3);
  std::vector<TurnReport> reports(3, {0, 2});
  turns.hand_out(reports);
  const size_t period[] = {1, 2, 5};  // rounds a tree takes
  for (size_t round = 1; !turns.all_finished(); ++round) {
    ASSERT_LT(round, 1000U);
    for (size_t rank = 0; rank < 3; ++rank) {
      const auto given = static_cast<int64_t>(turns.of(rank).size());
      if (round % period[rank] == 0 && reports[rank].finished < given) {
        ++reports[rank].finished;
      }
    }
    turns.hand_out(reports);
  }
  expect_each_once(turns, 3, 300);
  EXPECT_NEAR(static_cast<double>(turns.of(0).size()), 300 / 1.7, 4);
  EXPECT_NEAR(static_cast<double>(turns.of(2).size()), 60 / 1.7, 4);
}

class InTurns : public testing::TestWithParam<GroupCase> {};

TEST_P(InTurns, EachTreeIsGrownOnceAndAllRanksKnowByWhom) {
  constexpr size_t kTrees = 40;
  std::vector<std::atomic<int>> grown(kTrees);
  std::mutex mutex;
  std::set<std::vector<size_t>> answers;
  const auto ranks = static_cast<size_t>(GetParam().size);
  run_group(GetParam(), [&](Communicator& group) {
    const auto own = static_cast<size_t>(group.rank());
    std::set<size_t> mine;
    const auto turns =
        // Ranks need not have the same number of threads.
        grow_in_turns(
            kTrees, 1 + group.rank(), group, [&](size_t tree, size_t) {
              ++grown[tree];
              const std::lock_guard lock(mutex);
              mine.insert(tree);
            });
    EXPECT_EQ(
        mine, std::set<size_t>(turns.of(own).begin(), turns.of(own).end()));
    std::vector<size_t> answer;
    for (size_t rank = 0; rank < ranks; ++rank) {
      answer.insert(answer.end(), turns.of(rank).begin(), turns.of(rank).end());
    }
    const std::lock_guard lock(mutex);
    answers.insert(answer);
    expect_each_once(turns, ranks, kTrees);
  });
  EXPECT_EQ(answers.size(), 1U);
  for (const auto& count : grown) {
    EXPECT_EQ(count, 1);
  }
}

// Rank 0 is held up by its first tree until the others have grown all but what
// it was given. With a fixed share this would never end.
TEST_P(InTurns, ARankThatIsHeldUpLeavesTreesToTheOthers) {
  constexpr size_t kTrees = 30;
  std::mutex mutex;
  std::condition_variable changed;
  size_t by_others = 0;
  run_group(GetParam(), [&](Communicator& group) {
    const bool slow = group.rank() == 0;
    bool first = true;
    const auto turns = grow_in_turns(kTrees, 1, group, [&](size_t, size_t) {
      std::unique_lock lock(mutex);
      if (!slow) {
        ++by_others;
        changed.notify_all();
      } else if (std::exchange(first, false)) {
        EXPECT_TRUE(changed.wait_for(
            lock, seconds(30), [&] { return by_others >= kTrees - 2; }));
      }
    });
    EXPECT_LE(turns.of(0).size(), 2U);
  });
}

TEST_P(InTurns, WhatATreeThrowsIsThrownAndTheOthersAreTold) {
  run_group(GetParam(), [&](Communicator& group) {
    const auto grow = [&] {
      grow_in_turns(20, 2, group, [&](size_t, size_t) {
        if (group.rank() == 1) {
          throw std::length_error("no memory for a tree");
        }
      });
    };
    if (group.rank() == 1) {
      EXPECT_THROW(grow(), std::length_error);
    } else {
      EXPECT_THAT(collective::error_of(grow), testing::HasSubstr("rank 1"));
    }
  });
}

TEST_P(InTurns, WorkTogetherIsDoneOnceByEachRank) {
  run_group(GetParam(), [](Communicator& group) {
    for (int round = 0; round < 20; ++round) {
      int calls = 0;
      work_together(group, [&] { ++calls; });
      EXPECT_EQ(calls, 1);
    }
  });
}

// What a rank waits for is not a tree of another, but its word.
TEST(Turns, ATreeMayTakeLongerThanTheTimeout) {
  for (const auto mode : {Mode::kThreads, Mode::kRing}) {
    run_group({mode, 2, seconds(2)}, [](Communicator& group) {
      grow_in_turns(3, 1, group, [](size_t tree, size_t) {
        if (tree == 0) {
          std::this_thread::sleep_for(milliseconds(3500));
        }
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Groups,
    InTurns,
    testing::Values(
        GroupCase{Mode::kThreads, 2},
        GroupCase{Mode::kThreads, 4},
        GroupCase{Mode::kRing, 3},
        GroupCase{Mode::kHosts, 4}),
    [](const auto& info) {
      return collective::to_string(info.param.mode) +
             std::to_string(info.param.size);
    });

}  // namespace
}  // namespace lockstep::forest
