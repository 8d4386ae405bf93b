#include "lockstep/parallel/ddp.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/parallel/rank_threads_test.h"

namespace lockstep::parallel {
namespace {

using collective::Communicator;

// Two layers and one that forward never uses.
struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 40));
    second = register_module("second", torch::nn::Linear(40, 3));
    unused = register_module("unused", torch::nn::Linear(5, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
};

NamedTensors named(const torch::nn::Module& module) {
  NamedTensors list;
  for (const auto& item : module.named_parameters()) {
    list.emplace_back(item.key(), item.value());
  }
  return list;
}

// Every thread's net gets the same weights without touching a shared generator.
void fill(Net& net) {
  torch::NoGradGuard no_grad;
  int64_t base = 1;
  for (auto& parameter : net.parameters()) {
    parameter.copy_(
        at::sin(at::arange(base, base + parameter.numel()).to(at::kFloat))
            .view(parameter.sizes()));
    base += parameter.numel();
  }
}

at::Tensor input(int64_t rows) {
  return at::cos(at::arange(rows * 6).to(at::kFloat)).view({rows, 6});
}

std::vector<at::Tensor> reference_gradients(int64_t rows) {
  Net net;
  fill(net);
  net.forward(input(rows)).pow(2).sum(1).mean().backward();
  std::vector<at::Tensor> gradients;
  for (auto& parameter : net.parameters()) {
    gradients.push_back(
        parameter.grad().defined() ? parameter.grad().clone()
                                   : at::zeros_like(parameter));
  }
  return gradients;
}

class DdpWorld : public testing::TestWithParam<int> {};

TEST_P(DdpWorld, EqualsOneRankAtTheGlobalBatch) {
  const int world = GetParam();
  const int64_t per_rank = 6;
  const auto expected = reference_gradients(per_rank * world);
  run_ranks(world, [&](Communicator& group) {
    Net net;
    fill(net);
    // Buckets small enough that there are several.
    Ddp ddp(named(net), group, {.first_bucket_bytes = 64, .bucket_bytes = 900});
    EXPECT_GT(ddp.num_buckets(), 1);
    const auto mine =
        input(per_rank * world)
            .slice(0, group.rank() * per_rank, (group.rank() + 1) * per_rank);
    for (int step = 0; step < 3; ++step) {  // before and after the rebuild
      ddp.begin();
      (net.forward(mine).pow(2).sum(1).mean() / world).backward();
      ddp.finish();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(ddp.gradients()[i], expected[i], 1e-5, 1e-6))
            << "step " << step << " parameter " << i;
        EXPECT_EQ(
            ddp.parameters()[i].grad().data_ptr(),
            ddp.gradients()[i].data_ptr());
      }
    }
  });
}

TEST_P(DdpWorld, AccumulatesWithOneReductionPerParameter) {
  const int world = GetParam();
  const auto expected = reference_gradients(4 * world);
  run_ranks(world, [&](Communicator& group) {
    Net net;
    fill(net);
    Ddp ddp(named(net), group);
    const auto mine =
        input(4 * world).slice(0, group.rank() * 4, (group.rank() + 1) * 4);
    ddp.begin();
    ddp.hold();
    (net.forward(mine.slice(0, 0, 2)).pow(2).sum(1).mean() / (2 * world))
        .backward();
    ddp.release();
    (net.forward(mine.slice(0, 2, 4)).pow(2).sum(1).mean() / (2 * world))
        .backward();
    ddp.finish();
    int64_t elements = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      elements += expected[i].numel();
      EXPECT_TRUE(at::allclose(ddp.gradients()[i], expected[i], 1e-5, 1e-6));
    }
    EXPECT_EQ(ddp.reduced_elements(), elements);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpWorld, testing::Values(1, 2, 3, 4));

TEST(Ddp, FrozenParametersStayOutOfBackwardAndKeepTheirHooks) {
  run_ranks(2, [&](Communicator& group) {
    Net net;
    fill(net);
    Ddp ddp(named(net), group);
    for (auto& parameter : net.parameters()) {
      parameter.requires_grad_(false);
    }
    auto x = input(2).clone().requires_grad_(true);
    net.forward(x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    for (const auto& gradient : ddp.gradients()) {
      EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
    }
    for (auto& parameter : net.parameters()) {
      parameter.requires_grad_(true);
    }
    ddp.begin();
    net.forward(input(2)).sum().backward();
    ddp.finish();
    EXPECT_GT(ddp.gradients()[0].abs().sum().item<float>(), 0);
  });
}

TEST(Broadcast, GivesAllRanksTheWeightsOfRankZero) {
  run_ranks(3, [&](Communicator& group) {
    auto tensor = at::full({5, 7}, group.rank(), at::kFloat).t();
    auto whole = at::full({3}, group.rank(), at::kLong);
    broadcast({{"a", tensor}, {"b", whole}}, group);
    EXPECT_EQ(tensor.abs().sum().item<float>(), 0);
    EXPECT_EQ(whole.sum().item<int64_t>(), 0);
  });
}

// The ranks share the first GPU; `kind` carries its gradients.
void compare_on_gpu(int world, const std::string& kind) {
  const int64_t per_rank = 6;
  const auto expected = reference_gradients(per_rank * world);
  run_ranks(
      world,
      [&](Communicator& group) {
        EXPECT_EQ(group.name(), kind);
        Net net;
        fill(net);
        net.to(at::kCUDA);
        broadcast(named(net), group);
        Ddp ddp(
            named(net), group, {.first_bucket_bytes = 64, .bucket_bytes = 900});
        const auto mine =
            input(per_rank * world)
                .slice(
                    0, group.rank() * per_rank, (group.rank() + 1) * per_rank)
                .to(at::kCUDA);
        for (int step = 0; step < 3; ++step) {
          ddp.begin();
          (net.forward(mine).pow(2).sum(1).mean() / world).backward();
          ddp.finish();
          for (size_t i = 0; i < expected.size(); ++i) {
            const auto& gradient = ddp.gradients()[i];
            EXPECT_TRUE(gradient.is_cuda());
            EXPECT_TRUE(
                at::allclose(gradient.to(at::kCPU), expected[i], 1e-4, 1e-5))
                << "step " << step << " parameter " << i;
          }
        }
      },
      {.kind = kind, .device = 0});
}

class DdpOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU here";
    }
  }
};

TEST_F(DdpOnGpu, TwoRanksShareAGpuThroughHostMemory) {
  compare_on_gpu(2, "host");
}

TEST_F(DdpOnGpu, NcclReducesWhereTheGradientsLie) {
  if (collective::available_kinds().back() != "nccl") {
    GTEST_SKIP() << "no nccl in this build";
  }
  compare_on_gpu(1, "nccl");
}

}  // namespace
}  // namespace lockstep::parallel
