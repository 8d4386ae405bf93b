#include "lockstep/models/esrgan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include "lockstep/kernels/bias_act.h"
#include "lockstep/models/launch.h"
#include "lockstep/models/relativistic.h"

// The parts of ESRGAN against LibTorch's operations in double precision, with
// their gradients: by the CPU's kernels in fp32 and bf16, by the GPU's in bf16
// where there is one.

namespace lockstep::models {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Where {
  const char* name;
  c10::Device device;
  at::ScalarType type;
  double band;  // ||ours - reference|| / ||reference||
};

std::vector<Where> places() {
  std::vector<Where> list = {
      {"cpu fp32", at::kCPU, at::kFloat, 1e-5},
      {"cpu bf16", at::kCPU, at::kBFloat16, 2e-2}};
  if (torch::cuda::is_available()) {
    list.push_back({"cuda bf16", at::kCUDA, at::kBFloat16, 2e-2});
  }
  return list;
}

void expect_near(
    const at::Tensor& ours,
    const at::Tensor& reference,
    double band,
    const std::string& what) {
  const auto mine = ours.detach().to(at::kCPU, at::kDouble);
  const auto wanted = reference.detach().to(at::kCPU, at::kDouble);
  const double apart = (mine - wanted).norm().item<double>();
  EXPECT_LE(apart, band * std::max(wanted.norm().item<double>(), 1e-9)) << what;
}

int64_t count(const torch::nn::Module& module) {
  int64_t total = 0;
  for (const auto& parameter : module.parameters()) {
    total += parameter.numel();
  }
  return total;
}

TEST(Esrgan, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(count(EsrganGenerator({})), 38'549'123);
  EXPECT_EQ(count(EsrganDiscriminator(3)), 4'693'697);
  EXPECT_EQ(count(Vgg19Features()), 20'024'384);
}

TEST(Esrgan, SizesNeedNotBeSquare) {
  at::NoGradGuard no_grad;
  EsrganGenerator generator(
      {.channels = 3, .residual_blocks = 1, .filters = 8});
  EXPECT_EQ(
      generator.forward(at::randn({2, 3, 5, 9})).sizes(),
      (std::vector<int64_t>{2, 3, 20, 36}));
  EXPECT_EQ(
      EsrganDiscriminator(3).forward(at::randn({2, 3, 32, 48})).sizes(),
      (std::vector<int64_t>{2, 1, 2, 3}));
  EXPECT_EQ(
      Vgg19Features().forward(at::randn({1, 1, 32, 48})).sizes(),
      (std::vector<int64_t>{1, 512, 2, 3}));
}

// A pixel farther off than reach() changes nothing, one within half of it does
// (what lies between is small in fp32).
TEST(Esrgan, ReachIsHowFarAnOutputSees) {
  at::NoGradGuard no_grad;
  EsrganGenerator generator(
      {.channels = 1, .residual_blocks = 1, .filters = 8});
  const int64_t reach = generator.reach();
  const auto low = at::zeros({1, 1, 1, 2 * reach + 8}, at::kFloat);
  const auto before = generator.forward(low);
  auto moved = low.clone();
  moved.select(3, 0).fill_(1000);
  const auto change = (generator.forward(moved) - before).abs().sum({0, 1, 2});
  EXPECT_EQ(change.slice(0, 4 * (reach + 1)).max().item<float>(), 0);
  EXPECT_GT(change.slice(0, 0, 2 * reach).min().item<float>(), 0);
}

// The block in double precision, by concatenation.
at::Tensor dense_reference(
    const at::Tensor& x,
    const DenseParameters& weights,
    const DenseParameters& biases) {
  std::vector<at::Tensor> maps = {x};
  for (size_t i = 0; i < kDenseConvs; ++i) {
    auto y = at::conv2d(at::cat(maps, 1), weights[i], biases[i], 1, 1);
    maps.push_back(i + 1 < kDenseConvs ? at::leaky_relu(y, .01) : y);
  }
  return x + maps.back() * .2;
}

struct DenseCase {
  at::Tensor x;
  DenseParameters weights;
  DenseParameters biases;

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> list = {x};
    list.insert(list.end(), weights.begin(), weights.end());
    list.insert(list.end(), biases.begin(), biases.end());
    return list;
  }
  // Copies that gradients come to.
  DenseCase as(const Where* where) const {
    const auto copy = [&](const at::Tensor& from, at::ScalarType type) {
      auto to = where != nullptr ? from.to(where->device, type)
                                 : from.to(at::kDouble);
      if (to.dim() == 4) {
        to = to.contiguous(kLast);
      }
      return to.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
    };
    DenseCase made;
    made.x = copy(x, where != nullptr ? where->type : at::kDouble);
    for (size_t i = 0; i < kDenseConvs; ++i) {
      made.weights[i] = copy(weights[i], at::kFloat);
      made.biases[i] = copy(biases[i], at::kFloat);
    }
    return made;
  }
};

DenseCase dense_case(int64_t width) {
  torch::manual_seed(3);
  DenseCase made;
  // Exact in bf16, so that all kinds see the same values.
  made.x = at::randn({2, width, 5, 6}).to(at::kBFloat16).to(at::kFloat);
  for (size_t i = 0; i < kDenseConvs; ++i) {
    const auto in = width * static_cast<int64_t>(i + 1);
    made.weights[i] = (at::randn({width, in, 3, 3}) *
                       (1 / std::sqrt(9. * static_cast<double>(in))))
                          .to(at::kBFloat16)
                          .to(at::kFloat);
    made.biases[i] = at::randn({width}) * .3;
  }
  return made;
}

TEST(DenseBlock, ByKernelsIsTheConcatenation) {
  for (const Where& where : places()) {
    for (const int64_t width : {8, 16, 64}) {
      const auto given = dense_case(width);
      const auto truth = given.as(nullptr);
      const auto wanted = dense_reference(truth.x, truth.weights, truth.biases);
      const auto weight = at::randn_like(wanted);
      (wanted * weight).sum().backward();
      const auto ours = given.as(&where);
      // One gradient that is there already is added to, as Ddp's buckets are.
      ours.weights[2].mutable_grad() = at::ones_like(ours.weights[2]);
      const auto got = fused_dense_block(ours.x, ours.weights, ours.biases);
      const auto name = fmt::format("{} width {}", where.name, width);
      expect_near(got, wanted, where.band, name);
      got.backward(weight.to(where.device, where.type));
      const auto mine = ours.leaves();
      const auto theirs = truth.leaves();
      for (size_t i = 0; i < mine.size(); ++i) {
        auto expected = theirs[i].grad();
        if (i == 3) {
          expected = expected + 1;
        }
        expect_near(
            mine[i].grad(),
            expected,
            2 * where.band,
            fmt::format("{} gradient {}", name, i));
      }
    }
  }
}

TEST(DenseBlock, ModuleIsTheReference) {
  DenseBlock block(16);
  DenseCase given = dense_case(16);
  size_t i = 0;
  at::NoGradGuard no_grad;
  for (const auto& item : block.named_parameters()) {
    (item.key().ends_with("weight") ? given.weights : given.biases)[i / 2] =
        item.value();
    ++i;
  }
  EXPECT_EQ(i, 2 * kDenseConvs);
  const auto truth = given.as(nullptr);
  expect_near(
      block.forward(given.x),
      dense_reference(truth.x, truth.weights, truth.biases),
      1e-5,
      "module");
}

TEST(ConvAct, IsConvolutionBiasAndLeakyRelu) {
  for (const double slope : {0., .01, .2, 1.}) {
    for (const int64_t stride : {1, 2}) {
      torch::manual_seed(1);
      const auto x = at::randn({2, 8, 7, 6}, at::kDouble);
      const auto weight = at::randn({16, 8, 3, 3}, at::kDouble) * .1;
      const auto bias = at::randn({16}, at::kDouble);
      std::vector<std::vector<at::Tensor>> results;
      for (const bool ours : {false, true}) {
        const auto type = ours ? at::kFloat : at::kDouble;
        auto leaves = std::vector<at::Tensor>{x, weight, bias};
        for (auto& leaf : leaves) {
          leaf = leaf.to(type).detach().clone().requires_grad_();
        }
        const auto y =
            ours ? conv_act(leaves[0], leaves[1], leaves[2], slope, stride)
                 : at::leaky_relu(
                       at::conv2d(
                           leaves[0],
                           leaves[1],
                           leaves[2],
                           {stride, stride},
                           {1, 1}),
                       slope);
        (y * y).sum().backward();
        auto& list = results.emplace_back();
        list.push_back(y);
        for (const auto& leaf : leaves) {
          list.push_back(leaf.grad());
        }
      }
      for (size_t i = 0; i < results[0].size(); ++i) {
        expect_near(
            results[1][i],
            results[0][i],
            1e-5,
            fmt::format("slope {} stride {}: {}", slope, stride, i));
      }
    }
  }
}

TEST(ConvAct, OnAGpuInHalfPrecisionToo) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU here";
  }
  torch::manual_seed(1);
  const auto x = at::randn({2, 64, 9, 8}).to(at::kBFloat16);
  const auto weight = (at::randn({64, 64, 3, 3}) * .05).to(at::kBFloat16);
  const auto bias = at::randn({64});
  const auto leaf = [](const at::Tensor& from, at::ScalarType type, bool gpu) {
    auto to = from.to(gpu ? at::kCUDA : at::kCPU, type);
    if (to.dim() == 4) {
      to = to.contiguous(kLast);
    }
    return to.detach().requires_grad_();
  };
  std::vector<std::vector<at::Tensor>> results;
  for (const bool gpu : {false, true}) {
    const auto half = gpu ? at::kBFloat16 : at::kDouble;
    const auto a = leaf(x, half, gpu);
    const auto b = leaf(weight, half, gpu);
    const auto c = leaf(bias, gpu ? at::kFloat : at::kDouble, gpu);
    const auto y = gpu ? conv_act(a, b, c, .2)
                       : at::leaky_relu(at::conv2d(a, b, c, 1, 1), .2);
    y.sum().backward();
    results.push_back({y, a.grad(), b.grad(), c.grad()});
  }
  for (size_t i = 0; i < 4; ++i) {
    expect_near(results[1][i], results[0][i], 2e-2, std::to_string(i));
  }
}

TEST(Relativistic, LossesAndGradientsAreAutograds) {
  for (const Where& where : places()) {
    if (where.type != at::kFloat && where.device.is_cpu()) {
      continue;  // always in fp32
    }
    for (const double size : {1., 30.}) {  // large logits stay finite
      torch::manual_seed(2);
      const auto real = (at::randn({5, 1, 3, 2}) * size).to(at::kDouble);
      const auto fake = (at::randn({5, 1, 3, 2}) * size).to(at::kDouble);
      const auto ours = relativistic_loss(
          real.to(where.device, at::kFloat), fake.to(where.device, at::kFloat));
      const auto plain = relativistic_loss(real, fake);
      const auto a = real.clone().requires_grad_();
      const auto b = fake.clone().requires_grad_();
      const auto bce = [](const at::Tensor& logits, double target) {
        return at::binary_cross_entropy_with_logits(
            logits, at::full_like(logits, target));
      };
      const auto generator = bce(b - real.mean(0, true), 1);
      const auto critic =
          (bce(a - b.mean(0, true), 1) + bce(b - a.mean(0, true), 0)) / 2;
      generator.backward();
      const auto generator_fake = b.grad().clone();
      b.mutable_grad().zero_();
      critic.backward();
      for (const auto* loss : {&ours, &plain}) {
        const double band = loss == &ours ? 1e-5 : 1e-9;
        expect_near(loss->generator, generator, band, "G");
        expect_near(loss->discriminator, critic, band, "D");
        expect_near(loss->generator_fake, generator_fake, band, "dG / dfake");
        expect_near(loss->critic_real, a.grad(), band, "dD / dreal");
        expect_near(loss->critic_fake, b.grad(), band, "dD / dfake");
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::models
