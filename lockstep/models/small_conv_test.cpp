// Convolutions of few pixels against LibTorch's own in fp64.

#include "lockstep/models/small_conv.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/models/conv_reference_test.h"

namespace lockstep::models {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Case {
  int64_t height;
  int64_t width;
  int64_t kernel;
  int64_t stride;
};

void compare(const Case& c, at::ScalarType type, double limit) {
  at::manual_seed(5);
  const auto x = map(3, 64, c.height, c.width);
  const auto weight = map(72, 64, c.kernel, c.kernel);
  const auto my_x = leaf(x, type);
  const auto my_weight = leaf(weight, type);
  const auto x2 = leaf(x, at::kDouble);
  const auto weight2 = leaf(weight, at::kDouble);
  ASSERT_TRUE(takes_products(my_x, my_weight, c.stride));
  const auto y = small_conv(my_x, my_weight, c.stride);
  const int64_t padding = c.kernel / 2;
  const auto y2 =
      at::conv2d(x2, weight2, {}, {c.stride, c.stride}, {padding, padding});
  ASSERT_EQ(y.sizes(), y2.sizes());
  EXPECT_TRUE(y.is_contiguous(kLast));
  EXPECT_LT(error(y, y2), limit);
  // Plain memory: what comes back is not always in channels_last.
  const auto dy = at::randn(y.sizes());
  y.backward(dy.to(type));
  y2.backward(dy.to(at::kDouble));
  EXPECT_LT(error(my_x.grad(), x2.grad()), limit);
  EXPECT_LT(error(my_weight.grad(), weight2.grad()), limit);
}

TEST(SmallConvTest, LikeLibTorch) {
  for (const Case& c : std::vector<Case>{
           {2, 2, 3, 1},
           {4, 4, 3, 2},
           {3, 3, 3, 2},
           {1, 1, 3, 1},
           {1, 4, 3, 1},
           {3, 1, 3, 2},
           {2, 2, 1, 1},
           {4, 4, 1, 2},
           {2, 2, 7, 1}}) {
    SCOPED_TRACE(
        testing::Message() << c.height << "x" << c.width << " kernel "
                           << c.kernel << " stride " << c.stride);
    compare(c, at::kDouble, 1e-12);
    compare(c, at::kFloat, 1e-5);
  }
}

TEST(SmallConvTest, AddsToTheGradientThatIsThere) {
  const auto x = map(2, 64, 2, 2);
  const auto weight = leaf(map(64, 64, 3, 3), at::kFloat);
  small_conv(x, weight).sum().backward();
  const auto once = weight.grad().clone();
  const auto* place = weight.grad().data_ptr();
  (2 * small_conv(x, weight)).sum().backward();
  EXPECT_EQ(weight.grad().data_ptr(), place);
  EXPECT_TRUE(at::allclose(weight.grad(), 3 * once, 1e-4, 1e-4));
  EXPECT_FALSE(x.grad().defined());
}

TEST(SmallConvTest, LeavesTheRestToLibTorch) {
  const auto x = map(2, 64, 2, 2);
  const auto weight = map(64, 64, 3, 3);
  EXPECT_TRUE(takes_products(x, weight, 1));
  EXPECT_FALSE(takes_products(map(2, 64, 8, 8), weight, 1));
  EXPECT_FALSE(takes_products(map(2, 3, 2, 2), map(64, 3, 3, 3), 1));
  EXPECT_FALSE(takes_products(x.contiguous(), weight, 1));
  EXPECT_FALSE(takes_products(x, weight.contiguous(), 1));
  EXPECT_FALSE(takes_products(x.to(at::kBFloat16), weight, 1));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(takes_products(x, weight, 1));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const auto plain = small_conv(x.contiguous(), weight);
  EXPECT_TRUE(at::allclose(plain, small_conv(x, weight), 1e-4, 1e-4));
}

}  // namespace
}  // namespace lockstep::models
