// Winograd's convolution against LibTorch's own in fp64.

#include "lockstep/models/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/models/conv_act.h"
#include "lockstep/models/conv_reference_test.h"

namespace lockstep::models {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Case {
  int64_t images;
  int64_t in;
  int64_t out;
  int64_t height;
  int64_t width;
  bool bias;
  double slope;
};

std::vector<Case> cases() {
  return {
      {16, 32, 48, 4, 4, false, 1},
      {2, 64, 32, 16, 16, true, .2},
      {3, 40, 33, 9, 11, true, 0},     // sides that tiles do not fill
      {64, 32, 32, 1, 2, true, 1},     // smaller than a tile
      {9, 256, 64, 13, 16, false, 1},  // more than one chunk of tiles
  };
}

void compare(const Case& c, at::ScalarType type, double limit) {
  at::manual_seed(11);
  const auto x = map(c.images, c.in, c.height, c.width);
  const auto weight = map(c.out, c.in, 3, 3);
  const auto bias = at::randn({c.out});
  const auto my_x = leaf(x, type);
  const auto my_weight = leaf(weight, type);
  const auto my_bias = leaf(bias, type);
  const auto x2 = leaf(x, at::kDouble);
  const auto weight2 = leaf(weight, at::kDouble);
  const auto bias2 = leaf(bias, at::kDouble);
  ASSERT_TRUE(takes_winograd(my_x, my_weight));
  const auto y =
      winograd_conv(my_x, my_weight, c.bias ? my_bias : at::Tensor(), c.slope);
  const auto y2 = at::leaky_relu(
      at::conv2d(x2, weight2, c.bias ? bias2 : at::Tensor(), {1, 1}, {1, 1}),
      c.slope);
  ASSERT_EQ(y.sizes(), y2.sizes());
  EXPECT_TRUE(y.is_contiguous(kLast));
  EXPECT_LT(error(y, y2), limit);
  // Plain memory: what comes back is not always in channels_last.
  const auto dy = at::randn(y.sizes());
  y.backward(dy.to(type));
  y2.backward(dy.to(at::kDouble));
  EXPECT_LT(error(my_x.grad(), x2.grad()), limit);
  EXPECT_LT(error(my_weight.grad(), weight2.grad()), limit);
  if (c.bias) {
    EXPECT_LT(error(my_bias.grad(), bias2.grad()), limit);
  }
}

TEST(WinogradTest, LikeLibTorch) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(
        testing::Message() << c.in << " to " << c.out << ", " << c.height << "x"
                           << c.width);
    compare(c, at::kDouble, 1e-12);
    // A kink of the activation may fall to the other side.
    compare(c, at::kFloat, c.slope == 1 ? 2e-6 : 1e-4);
  }
}

TEST(WinogradTest, ThreadsChangeNextToNothing) {
  const int before = at::get_num_threads();
  const auto x = map(3, 64, 9, 12);
  const auto weight = map(32, 64, 3, 3);
  at::set_num_threads(1);
  const auto alone = winograd_conv(x, weight);
  at::set_num_threads(3);
  const auto shared = winograd_conv(x, weight);
  at::set_num_threads(before);
  EXPECT_LT(error(shared, alone.to(at::kDouble)), 1e-6);
}

TEST(WinogradTest, AddsToTheGradientThatIsThere) {
  const auto x = map(16, 32, 4, 4);
  const auto weight = leaf(map(32, 32, 3, 3), at::kFloat);
  winograd_conv(x, weight).sum().backward();
  const auto once = weight.grad().clone();
  const auto* place = weight.grad().data_ptr();
  (2 * winograd_conv(x, weight)).sum().backward();
  EXPECT_EQ(weight.grad().data_ptr(), place);
  EXPECT_TRUE(at::allclose(weight.grad(), 3 * once, 1e-4, 1e-3));
}

TEST(WinogradTest, LeavesTheRestToLibTorch) {
  const auto x = map(4, 32, 8, 8);
  const auto weight = map(32, 32, 3, 3);
  EXPECT_TRUE(takes_winograd(x, weight));
  EXPECT_FALSE(takes_winograd(map(1, 32, 8, 8), weight));  // few tiles
  EXPECT_FALSE(takes_winograd(map(4, 512, 8, 8), map(512, 512, 3, 3)));
  EXPECT_TRUE(takes_winograd(map(8, 512, 8, 8), map(512, 512, 3, 3)));
  EXPECT_FALSE(takes_winograd(map(4, 3, 8, 8), map(32, 3, 3, 3)));
  EXPECT_FALSE(takes_winograd(x, map(32, 32, 1, 1)));
  EXPECT_FALSE(takes_winograd(x.contiguous(), weight));
  EXPECT_FALSE(takes_winograd(x.to(at::kBFloat16), weight));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(takes_winograd(x, weight));
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(WinogradTest, FrozenWeightsAreReadAnewWhenTheyChange) {
  Conv3 conv(32, 32);
  conv.weight.requires_grad_(false);
  const auto x = map(4, 32, 8, 8);
  const auto plain = [&] {
    return at::conv2d(x, conv.weight, conv.bias, {1, 1}, {1, 1})
        .to(at::kDouble);
  };
  EXPECT_LT(error(conv.forward(x), plain()), 1e-5);
  conv.weight.mul_(2);
  EXPECT_LT(error(conv.forward(x), plain()), 1e-5);
  conv.weight.set_data(at::randn({32, 32, 3, 3}));
  EXPECT_LT(error(conv.forward(x), plain()), 1e-5);
}

}  // namespace
}  // namespace lockstep::models
