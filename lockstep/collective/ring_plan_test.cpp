#include "lockstep/collective/ring_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::collective {
namespace {

// Every byte that a host sends in a step is what its neighbour receives in the
// same step, whatever the sizes.
void expect_neighbours_agree(const std::vector<RingPlan>& plans) {
  const size_t size = plans.size();
  for (size_t host = 0; host < size; ++host) {
    const auto& sends = plans[host].sends;
    const auto& receives = plans[(host + 1) % size].receives;
    ASSERT_EQ(sends.size(), receives.size()) << "host " << host;
    for (size_t step = 0; step < sends.size(); ++step) {
      EXPECT_EQ(sends[step].bytes, receives[step].bytes);
      ASSERT_EQ(sends[step].extents.size(), receives[step].extents.size());
      for (size_t i = 0; i < sends[step].extents.size(); ++i) {
        EXPECT_EQ(
            sends[step].extents[i].offset, receives[step].extents[i].offset);
      }
    }
  }
}

std::vector<RingPlan> all_reduce_plans(int size, size_t count) {
  std::vector<RingPlan> plans;
  for (int host = 0; host < size; ++host) {
    plans.push_back(plan_all_reduce(
        {host, size}, count, DataType::kFloat32, ReduceOp::kSum));
  }
  return plans;
}

TEST(RingPlan, NeighboursAgreeOnEveryStep) {
  for (const int size : {2, 3, 5}) {
    for (const size_t count : {1UL, 7UL, 1000UL, 1000003UL}) {
      const auto plans = all_reduce_plans(size, count);
      expect_neighbours_agree(plans);
      // Reduced once on each way round but the last, then passed on.
      size_t reduced = 0;
      for (const RingPlan& plan : plans) {
        for (const auto& step : plan.receives) {
          reduced += step.reduce ? step.bytes : 0;
        }
      }
      EXPECT_EQ(reduced, count * 4 * static_cast<size_t>(size - 1));
    }
  }
}

TEST(RingPlan, PassesOnWhatItReceived) {
  const auto plan =
      plan_all_reduce({1, 4}, 100, DataType::kFloat32, ReduceOp::kSum);
  ASSERT_EQ(plan.sends.size(), 6U);
  EXPECT_TRUE(plan.sends[0].fresh);
  for (size_t step = 1; step < plan.sends.size(); ++step) {
    EXPECT_FALSE(plan.sends[step].fresh);
    EXPECT_EQ(plan.sends[step].after, step - 1);
    EXPECT_EQ(
        plan.sends[step].extents[0].offset,
        plan.receives[step - 1].extents[0].offset);
  }
}

TEST(RingPlan, BroadcastGoesOnceRound) {
  for (int root = 0; root < 3; ++root) {
    for (int host = 0; host < 3; ++host) {
      const auto plan = plan_broadcast({host, 3}, 10, root);
      const int distance = (host - root + 3) % 3;
      EXPECT_EQ(plan.receives.size(), distance > 0 ? 1U : 0U);
      EXPECT_EQ(plan.sends.size(), distance < 2 ? 1U : 0U);
    }
  }
}

TEST(RingPlan, FindsAPositionInItsExtents) {
  const Extents extents = {{100, 10}, {0, 0}, {500, 5}};
  EXPECT_EQ(at_position(extents, 4).offset, 104U);
  EXPECT_EQ(at_position(extents, 4).bytes, 6U);
  EXPECT_EQ(at_position(extents, 10).offset, 500U);
  EXPECT_EQ(at_position(extents, 15).bytes, 0U);
}

}  // namespace
}  // namespace lockstep::collective
