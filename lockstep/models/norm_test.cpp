// BatchNorm with what follows it against LibTorch's own operations, domain
// after domain; on a GPU in bf16 where there is one.

#include "lockstep/models/norm.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "lockstep/models/transfer.h"

namespace lockstep::models {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Case {
  int64_t domains;
  int64_t images;  // of a domain
  int64_t channels;
  int64_t side;
  double slope;  // of the ReLU below zero; 1: none
  bool past;
};

std::vector<Case> cases() {
  return {
      {1, 4, 8, 5, 0, false},
      {2, 3, 64, 7, 0, false},
      {2, 3, 24, 6, 0, true},
      {2, 5, 256, 3, 1, false},
      {2, 5, 128, 4, .2, false},
      {1, 3, 16, 3, .2, false},
      {3, 2, 40, 9, 0, true},
      {2, 4, 2048, 1, 0, true}};
}

torch::nn::BatchNorm2d make_layer(int64_t channels) {
  torch::nn::BatchNorm2d layer(channels);
  torch::NoGradGuard no_grad;
  layer->weight.uniform_(.5, 1.5);
  layer->bias.uniform_(-.5, .5);
  return layer;
}

at::Tensor ours(
    const Case& c,
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer) {
  return c.past         ? norm_add_relu(x, past, layer, c.domains)
         : c.slope == 0 ? norm_relu(x, layer, c.domains)
         : c.slope == 1 ? norm(x, layer, c.domains)
                        : norm_leaky_relu(x, layer, c.slope, c.domains);
}

at::Tensor theirs(
    const Case& c,
    const at::Tensor& x,
    const at::Tensor& past,
    torch::nn::BatchNorm2d& layer) {
  std::vector<at::Tensor> parts;
  for (const auto& part : x.chunk(c.domains)) {
    parts.push_back(layer->forward(part));
  }
  auto y = at::cat(parts);
  if (c.past) {
    y = y + past;
  }
  return at::leaky_relu(y, c.slope);
}

double error(const at::Tensor& a, const at::Tensor& b) {
  const auto wide = b.to(at::kDouble).cpu();
  return ((a.to(at::kDouble).cpu() - wide).norm() / wide.norm().clamp_min(1e-9))
      .item<double>();
}

void compare(const Case& c, c10::Device device, at::ScalarType type) {
  at::manual_seed(7);
  // Of values around kMean deviations: two roundings of kMean x 2^-23.
  constexpr double kMean = 20;
  const double limit = type == at::kFloat ? 2 * kMean * 0x1p-23 : 2e-2;
  const auto make = [&](double mean) {
    return (at::randn({c.domains * c.images, c.channels, c.side, c.side}) +
            mean)
        .to(type)
        .to(at::kFloat)
        .contiguous(kLast);
  };
  // A mean much larger than the deviation must not cost digits.
  const auto x = make(type == at::kFloat ? kMean : 2);
  const auto past = make(0);
  const auto dy = make(0);
  auto reference = make_layer(c.channels);
  auto layer = make_layer(c.channels);
  {
    torch::NoGradGuard no_grad;
    layer->weight.copy_(reference->weight);
    layer->bias.copy_(reference->bias);
  }
  layer->to(device);
  reference->to(at::kDouble);
  const auto leaf = [&](const at::Tensor& tensor, bool given) {
    return (given ? tensor.to(device, type).contiguous(kLast)
                  : tensor.to(at::kDouble))
        .detach()
        .clone()
        .requires_grad_();
  };
  const auto my_x = leaf(x, true);
  const auto my_past = leaf(past, true);
  const auto x2 = leaf(x, false);
  const auto past2 = leaf(past, false);
  const auto y = ours(c, my_x, my_past, layer);
  const auto y2 = theirs(c, x2, past2, reference);
  y.backward(dy.to(device, type));
  y2.backward(dy.to(at::kDouble));
  EXPECT_TRUE(y.is_contiguous(kLast));
  EXPECT_LT(error(y, y2), limit);
  EXPECT_LT(error(my_x.grad(), x2.grad()), 10 * limit);
  if (c.past) {
    EXPECT_LT(error(my_past.grad(), past2.grad()), limit);
  }
  EXPECT_LT(error(layer->weight.grad(), reference->weight.grad()), 10 * limit);
  EXPECT_LT(error(layer->bias.grad(), reference->bias.grad()), 10 * limit);
  EXPECT_LT(error(layer->running_mean, reference->running_mean), limit);
  EXPECT_LT(error(layer->running_var, reference->running_var), limit);
  EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), c.domains);
}

TEST(NormTest, FloatsOnTheCpu) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.channels);
    compare(c, at::kCPU, at::kFloat);
  }
}

TEST(NormTest, HalvesOnTheGpu) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU here";
  }
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.channels);
    compare(c, at::kCUDA, at::kBFloat16);
  }
  compare({2, 32, 64, 56, 0, true}, at::kCUDA, at::kBFloat16);
}

TEST(NormTest, ThreadsChangeNothing) {
  const Case c{2, 3, 72, 7, 0, true};
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    at::manual_seed(3);
    const auto x = at::randn({6, 72, 7, 7}).contiguous(kLast).requires_grad_();
    const auto past = at::randn({6, 72, 7, 7}).contiguous(kLast);
    auto layer = make_layer(72);
    const auto y = ours(c, x, past, layer);
    y.square().sum().backward();
    results.push_back(
        at::cat({y.flatten(), x.grad().flatten(), layer->running_var}));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
}

// Kill and resume must give equal bits, wherever memory lies the second time.
TEST(NormTest, AddressesChangeNothing) {
  for (const int64_t channels : {4, 8, 16, 24}) {
    at::Tensor first;
    std::vector<at::Tensor> others;
    for (int64_t turn = 0; turn < 40; ++turn) {
      at::manual_seed(3);
      const auto x =
          at::randn({8, channels, 4, 4}).contiguous(kLast).requires_grad_();
      torch::nn::BatchNorm2d layer(channels);
      norm_leaky_relu(x, layer, .2, 2).square().sum().backward();
      const auto all = at::cat(
          {x.grad().flatten(), layer->weight.grad(), layer->running_var});
      first = first.defined() ? first : all;
      EXPECT_TRUE(at::equal(first, all)) << channels << " turn " << turn;
      others.push_back(at::empty({1 + 3 * turn}));  // the next ones lie apart
    }
  }
}

TEST(NormTest, RunningStatisticsInEvaluation) {
  auto layer = make_layer(16);
  layer->running_mean.uniform_(-1, 1);
  layer->eval();
  const auto x = at::randn({4, 16, 3, 3}).contiguous(kLast);
  EXPECT_LT(error(norm_relu(x, layer, 2), at::relu(layer->forward(x))), 1e-6);
  EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), 0);
}

TEST(TransferTest, DistancesOfEqualAndOfFewSamples) {
  const auto x = at::randn({5, 3}, at::kDouble);
  EXPECT_NEAR(coral(x, x).item<double>(), 0, 1e-12);
  EXPECT_NEAR(mmd(x, x).item<double>(), 0, 1e-12);
  // A shift alone leaves the covariance; a constant has none.
  EXPECT_NEAR(coral(x, x + 4).item<double>(), 0, 1e-12);
  EXPECT_GT(mmd(x, x + 4).item<double>(), .1);
  EXPECT_GT(coral(x, at::ones({4, 3}, at::kDouble)).item<double>(), 0);
  EXPECT_TRUE(
      at::isfinite(mmd(at::ones({2, 3}), at::ones({2, 3}))).item<bool>());
}

TEST(BackboneTest, RefusesWhatItCannotBuild) {
  BackboneOptions options;
  options.name = "resnet19";
  EXPECT_THROW(make_backbone(options), std::invalid_argument);
  options = {.name = "alexnet", .image_size = 32};
  EXPECT_THROW(make_backbone(options), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::models
