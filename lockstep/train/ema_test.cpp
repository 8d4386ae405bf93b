#include "lockstep/train/ema.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::train {
namespace {

TEST(Ema, FollowsTheFormula) {
  auto parameter = at::randn({3, 4}).requires_grad_(true);
  auto expected = parameter.detach().clone().to(at::kDouble);
  Ema ema(.9, {{"w", parameter}});
  for (int64_t step = 1; step <= 200; ++step) {
    {
      at::NoGradGuard no_grad;
      parameter.add_(at::randn({3, 4}));
    }
    ema.update(step);
    const double decay = std::min(.9, (1. + step) / (10. + step));
    expected = decay * expected + (1 - decay) * parameter.detach();
  }
  EXPECT_EQ(ema.averages()[0].first, "w");
  EXPECT_TRUE(
      at::allclose(
          ema.averages()[0].second.to(at::kDouble), expected, 1e-4, 1e-5));
}

TEST(Ema, IsInPlaceForAScope) {
  auto parameter = at::zeros({2}).requires_grad_(true);
  Ema ema(.5, {{"w", parameter}});
  {
    at::NoGradGuard no_grad;
    parameter.fill_(8);
  }
  const void* where = parameter.data_ptr();
  {
    const Ema::InPlace averages(&ema);
    EXPECT_EQ(parameter.sum().item<float>(), 0);
    EXPECT_EQ(parameter.data_ptr(), where);
  }
  EXPECT_EQ(parameter.sum().item<float>(), 16);
  EXPECT_EQ(ema.averages()[0].second.sum().item<float>(), 0);
  const Ema::InPlace nothing(nullptr);
}

}  // namespace
}  // namespace lockstep::train
