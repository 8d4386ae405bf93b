#include "lockstep/train/graphed_step.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/train/graph_inputs.h"

namespace lockstep::train {
namespace {

TEST(GraphedStepTest, EachStepHasMetricsOfItsOwn) {
  GraphedStep step(at::kCPU, true, 2);
  const auto update = [&] {
    step.metrics().add_(3);
    return collective::Timing{.wait = 1, .busy = 2};
  };
  const auto first = step.run({4}, .1, update);
  const auto second = step.run({4, 2}, .1, [&] {
    step.metrics().add_(1);
    return update();
  });
  ASSERT_EQ(first.metrics.numel(), 2);
  EXPECT_EQ(first.metrics.scalar_type(), at::kDouble);
  // Begun at 0, and not written over by the next step.
  EXPECT_EQ(first.metrics[1].item<double>(), 3);
  EXPECT_EQ(second.metrics[1].item<double>(), 4);
  EXPECT_EQ(second.timing.busy, 2);
}

TEST(GraphedStepTest, GoesOnAfterAFailure) {
  GraphedStep step(at::kCPU, true, 1);
  EXPECT_THROW(
      step.run(
          {1},
          .1,
          [&]() -> collective::Timing {
            step.metrics().add_(7);
            throw std::runtime_error("a rank is gone");
          }),
      std::runtime_error);
  step.forget();
  const auto output = step.run({1}, .1, [] { return collective::Timing{}; });
  EXPECT_EQ(output.metrics[0].item<double>(), 0);
}

TEST(GraphInputsTest, OnACpuATensorIsItsOwnCopy) {
  GraphInputs inputs(at::kCPU);
  const auto tensor = at::empty({2});
  EXPECT_EQ(inputs.put(0, tensor).data_ptr(), tensor.data_ptr());
}

}  // namespace
}  // namespace lockstep::train
