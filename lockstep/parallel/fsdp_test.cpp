#include "lockstep/parallel/fsdp.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/parallel/ddp.h"
#include "lockstep/parallel/rank_threads_test.h"

namespace lockstep::parallel {
namespace {

using collective::Communicator;

constexpr int64_t kWidth = 10;
constexpr size_t kBlocks = 4;

// Odd sizes, so that rows do not divide; the last linear of a block is unused.
struct Block : torch::nn::Module {
  Block() {
    first = register_module("first", torch::nn::Linear(kWidth, 21));
    second = register_module("second", torch::nn::Linear(21, kWidth));
    unused = register_module("unused", torch::nn::Linear(3, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + second(at::tanh(first(x)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
};

// A convolution in channels_last, a token with a leading 1, blocks, a head and
// something that forward never uses.
struct Net : torch::nn::Module {
  explicit Net(size_t num_blocks = kBlocks) {
    enter = register_module(
        "enter", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, kWidth, 2)));
    token = register_parameter("token", at::zeros({1, 1, kWidth}));
    for (size_t i = 0; i < num_blocks; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i), std::make_shared<Block>()));
    }
    head = register_module("head", torch::nn::Linear(kWidth, 3));
    unused = register_module("unused", torch::nn::Linear(5, 5));
    fill();
    torch::NoGradGuard no_grad;
    enter->weight.set_data(
        enter->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  // The same weights in every thread, without a shared generator.
  void fill() {
    torch::NoGradGuard no_grad;
    int64_t base = 1;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          at::sin(at::arange(base, base + parameter.numel()).to(at::kFloat))
              .mul(.3)
              .view(parameter.sizes()));
      base += parameter.numel();
    }
  }
  NamedTensors named() const {
    NamedTensors list;
    for (const auto& item : named_parameters()) {
      list.emplace_back(item.key(), item.value());
    }
    return list;
  }
  std::vector<std::vector<at::Tensor>> block_parameters() const {
    std::vector<std::vector<at::Tensor>> list;
    for (const auto& block : blocks) {
      list.push_back(block->parameters());
    }
    return list;
  }
  at::Tensor forward(const at::Tensor& images, Strategy* strategy = nullptr) {
    auto x = enter(images).flatten(2).transpose(1, 2) + token;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto run = [&](const at::Tensor& in) {
        return blocks[i]->forward(in);
      };
      x = strategy != nullptr ? strategy->run_block(i, x, run) : run(x);
    }
    return head(x.select(1, 0)).to(at::kFloat);
  }
  torch::nn::Conv2d enter{nullptr};
  at::Tensor token;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::Linear head{nullptr}, unused{nullptr};
};

at::Tensor input(int64_t rows) {
  return at::cos(at::arange(rows * 48).to(at::kFloat)).view({rows, 3, 4, 4});
}

at::Tensor loss_of(const at::Tensor& output) {
  return output.pow(2).sum(1).mean();
}

NamedTensors reference_gradients(int64_t rows) {
  Net net;
  loss_of(net.forward(input(rows))).backward();
  NamedTensors gradients;
  for (auto& [name, parameter] : net.named()) {
    gradients.emplace_back(
        name,
        parameter.grad().defined() ? parameter.grad().clone()
                                   : at::zeros_like(parameter));
  }
  return gradients;
}

at::Tensor our_rows(const at::Tensor& whole, const Placement& placement) {
  const int64_t left = whole.size(placement.dim) - placement.offset;
  return whole.narrow(
      placement.dim, placement.offset, std::min(left, placement.rows_per_rank));
}

at::Tensor slice_of(const at::Tensor& all, const Communicator& group) {
  const int64_t rows = all.size(0) / group.size();
  return all.slice(0, group.rank() * rows, (group.rank() + 1) * rows);
}

void expect_parts(
    const Fsdp& fsdp,
    const std::vector<at::Tensor>& parts,
    const NamedTensors& whole) {
  const auto placements = fsdp.placements();
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(fsdp.names()[i], whole[i].first);
    const auto expected =
        our_rows(whole[i].second, placements.at(whole[i].first));
    EXPECT_EQ(parts[i].sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(parts[i], expected, 1e-4, 1e-6)) << whole[i].first;
  }
}

void step_by(Strategy& strategy, double rate) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < strategy.parameters().size(); ++i) {
    strategy.parameters()[i].add_(strategy.gradients()[i], -rate);
  }
}

class FsdpWorld : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  void run(const std::function<void(Communicator&)>& body) const {
    run_ranks(world(), body, {.apart = std::get<1>(GetParam())});
  }
};

TEST_P(FsdpWorld, GradientsAreTheRowsOfOneRankAtTheGlobalBatch) {
  const auto expected = reference_gradients(3 * world());
  run([&](Communicator& group) {
    Net net;
    Fsdp fsdp(net.named(), net.block_parameters(), group);
    const auto mine = slice_of(input(3 * group.size()), group);
    for (int step = 0; step < 3; ++step) {
      fsdp.begin();
      (loss_of(net.forward(mine, &fsdp)) / group.size()).backward();
      fsdp.finish();
      expect_parts(fsdp, fsdp.gradients(), expected);
    }
  });
}

TEST_P(FsdpWorld, EveryStepEqualsDdp) {
  run([&](Communicator& group) {
    Net replicated;
    Net sharded;
    Ddp ddp(replicated.named(), group);
    Fsdp fsdp(sharded.named(), sharded.block_parameters(), group);
    const auto mine = slice_of(input(2 * group.size()), group);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      ddp.begin();
      const auto left = loss_of(replicated.forward(mine, &ddp));
      (left / group.size()).backward();
      ddp.finish();
      fsdp.begin();
      const auto right = loss_of(sharded.forward(mine, &fsdp));
      (right / group.size()).backward();
      fsdp.finish();
      EXPECT_NEAR(left.item<double>(), right.item<double>(), 1e-5) << step;
      losses.push_back(right.item<double>());
      step_by(ddp, .02);
      step_by(fsdp, .02);
    }
    EXPECT_NE(losses.front(), losses.back());
    expect_parts(fsdp, fsdp.parameters(), replicated.named());
  });
}

TEST_P(FsdpWorld, AccumulatesInTheParts) {
  const auto expected = reference_gradients(6 * world());
  run([&](Communicator& group) {
    Net net;
    Fsdp fsdp(net.named(), net.block_parameters(), group);
    const auto mine = slice_of(input(6 * group.size()), group);
    for (int step = 0; step < 2; ++step) {
      fsdp.begin();
      for (int part = 0; part < 3; ++part) {
        part < 2 ? fsdp.hold() : fsdp.release();
        const auto some = mine.slice(0, 2 * part, 2 * part + 2);
        (loss_of(net.forward(some, &fsdp)) / (3 * group.size())).backward();
      }
      fsdp.finish();
      expect_parts(fsdp, fsdp.gradients(), expected);
    }
  });
}

TEST_P(FsdpWorld, ValidatesWithGatheredWeightsBetweenSteps) {
  run([&](Communicator& group) {
    Net plain;
    Net net;
    Fsdp fsdp(net.named(), net.block_parameters(), group);
    const auto images = input(4);
    const auto expected = plain.forward(images);
    {
      torch::NoGradGuard no_grad;
      const OpenGuard open(fsdp);
      for (int batch = 0; batch < 3; ++batch) {
        EXPECT_TRUE(
            at::allclose(net.forward(images, &fsdp), expected, 1e-5, 1e-6));
      }
    }
    // Nothing is left of the whole.
    for (const auto& [name, parameter] : net.named()) {
      EXPECT_EQ(parameter.storage().nbytes(), 0) << name;
    }
    fsdp.begin();
    (loss_of(net.forward(slice_of(input(2 * group.size()), group), &fsdp)) /
     group.size())
        .backward();
    fsdp.finish();
    expect_parts(fsdp, fsdp.gradients(), reference_gradients(2 * group.size()));
  });
}

// A rank is lost while others validate: the error travels, and the scope that
// it leaves has weights on their way that will never come.
TEST(Fsdp, AScopeOfWholeWeightsIsLeftWhenTheGroupFails) {
  auto rendezvous = wire::make_local_rendezvous();
  std::string told;
  const auto run_rank = [&](int rank) {
    at::set_num_threads(1);
    collective::GroupOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.kind = "host";
    const auto group = collective::make_communicator(options, *rendezvous);
    Net net;
    Fsdp fsdp(net.named(), net.block_parameters(), *group);
    torch::NoGradGuard no_grad;
    try {
      const OpenGuard open(fsdp);
      if (rank == 1) {
        group->abort("rank 1 is gone");
      } else {
        net.forward(input(2), &fsdp);
      }
    } catch (const collective::CollectiveError& failure) {
      told = failure.what();
    }
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  EXPECT_NE(told.find("rank 1 is gone"), std::string::npos) << told;
}

TEST_P(FsdpWorld, AnEditOfRankZeroReachesEveryPart) {
  run([&](Communicator& group) {
    Net net;
    Fsdp fsdp(
        net.named(), net.block_parameters(), group, {.compute = at::kBFloat16});
    fsdp.edit_whole([&] {
      if (group.rank() == 0) {
        net.token.fill_(7.001);
        net.head->weight.mul_(2);
      }
    });
    Net expected;
    {
      torch::NoGradGuard no_grad;
      expected.token.fill_(7.001);
      expected.head->weight.mul_(2);
    }
    expect_parts(fsdp, fsdp.parameters(), expected.named());
    // The hooks are still there.
    fsdp.begin();
    net.forward(input(2).to(at::kBFloat16), &fsdp).sum().backward();
    fsdp.finish();
    double seen = 0;
    for (const auto& gradient : fsdp.gradients()) {
      seen += gradient.abs().sum().item<double>();
    }
    EXPECT_GT(fsdp.total(seen), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    FsdpWorld,
    testing::Values(
        std::tuple(1, false),
        std::tuple(2, false),
        std::tuple(3, false),
        std::tuple(4, false),
        std::tuple(8, false),
        std::tuple(2, true),
        std::tuple(3, true)),
    [](const auto& info) {
      return (std::get<1>(info.param) ? "Apart" : "Together") +
             std::to_string(std::get<0>(info.param));
    });

TEST(Fsdp, ComputesInBf16OverPartsInFp32) {
  run_ranks(2, [](Communicator& group) {
    Net plain;
    Net net;
    Fsdp fsdp(
        net.named(), net.block_parameters(), group, {.compute = at::kBFloat16});
    const auto images = input(4);
    double last = 0;
    for (int step = 0; step < 5; ++step) {
      fsdp.begin();
      const auto output =
          net.forward(slice_of(images, group).to(at::kBFloat16), &fsdp);
      EXPECT_EQ(net.head->weight.scalar_type(), at::kBFloat16);
      (loss_of(output) / group.size()).backward();
      last = fsdp.total(loss_of(output).item<double>()) / group.size();
      fsdp.finish();
      for (const auto& part : fsdp.parameters()) {
        EXPECT_EQ(part.scalar_type(), at::kFloat);
      }
      for (const auto& gradient : fsdp.gradients()) {
        EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      }
      step_by(fsdp, .02);
    }
    double expected = 0;
    Ddp ddp(plain.named(), group);
    for (int step = 0; step < 5; ++step) {
      ddp.begin();
      const auto loss = loss_of(plain.forward(slice_of(images, group)));
      (loss / group.size()).backward();
      ddp.finish();
      expected = fsdp.total(loss.item<double>()) / group.size();
      step_by(ddp, .02);
    }
    EXPECT_NEAR(last, expected, .1 * expected);
    EXPECT_NE(last, expected);  // really bf16
  });
}

TEST(Fsdp, HoldsTwoBlocksAndTheirGradientsBesideTheParts) {
  for (const int world : {2, 4, 8}) {
    run_ranks(world, [](Communicator& group) {
      torch::nn::Linear enter(300, 300);
      std::vector<torch::nn::Linear> layers;
      NamedTensors named = {
          {"enter.w", enter->weight}, {"enter.b", enter->bias}};
      std::vector<std::vector<at::Tensor>> blocks;
      for (int i = 0; i < 6; ++i) {
        layers.emplace_back(300, 300);
        named.emplace_back(std::to_string(i) + ".w", layers.back()->weight);
        named.emplace_back(std::to_string(i) + ".b", layers.back()->bias);
        blocks.push_back({layers.back()->weight, layers.back()->bias});
      }
      int64_t all = 0;
      for (const auto& [name, tensor] : named) {
        all += tensor.numel();
      }
      Fsdp fsdp(named, blocks, group);
      for (int step = 0; step < 2; ++step) {
        fsdp.begin();
        auto x = enter(at::ones({2, 300}));
        for (size_t i = 0; i < 6; ++i) {
          x = fsdp.run_block(
              i, x, [&](const at::Tensor& in) { return layers[i](in); });
        }
        x.sum().backward();
        fsdp.finish();
      }
      const int64_t block = fsdp.largest_block_elements();
      const int64_t root = fsdp.root_elements();
      EXPECT_EQ(block, 300 * 301);
      EXPECT_EQ(root, 300 * 301);
      // Parts and their gradients; the optimiser adds another 8 bytes.
      const double formula =
          8. * static_cast<double>(all) / group.size() +
          4. * static_cast<double>(2 * block + 2 * block + 2 * root);
      EXPECT_NEAR(
          static_cast<double>(fsdp.peak_bytes()), formula, .02 * formula);
    });
  }
}

TEST(Fsdp, AFirstBlockWhoseInputNeedsNoGradientIsReducedToo) {
  run_ranks(2, [](Communicator& group) {
    Net net(1);
    Net plain(1);
    Fsdp fsdp(net.named(), net.block_parameters(), group);
    const auto x = at::ones({2, kWidth});
    fsdp.begin();
    (fsdp.run_block(
             0,
             x,
             [&](const at::Tensor& in) { return net.blocks[0]->forward(in); })
         .sum() /
     group.size())
        .backward();
    fsdp.finish();
    plain.blocks[0]->forward(x).sum().backward();
    const auto placements = fsdp.placements();
    for (size_t i = 0; i < fsdp.names().size(); ++i) {
      if (fsdp.names()[i] == "block0.first.weight") {
        EXPECT_TRUE(
            at::allclose(
                fsdp.gradients()[i],
                our_rows(
                    plain.blocks[0]->first->weight.grad(),
                    placements.at(fsdp.names()[i]))));
      }
    }
  });
}

TEST(Fsdp, AStepIsATransaction) {
  run_ranks(2, [](Communicator& outer) {
    // A group of its own: it dies.
    static auto rendezvous = wire::make_local_rendezvous();
    collective::GroupOptions options;
    options.rank = outer.rank();
    options.world_size = outer.size();
    options.kind = "host";
    options.timeout = std::chrono::seconds(60);
    options.group = "dies";
    const auto group = collective::make_communicator(options, *rendezvous);
    Net net;
    Fsdp fsdp(net.named(), net.block_parameters(), *group);
    std::vector<at::Tensor> before;
    for (const auto& part : fsdp.parameters()) {
      before.push_back(part.clone());
    }
    outer.barrier();
    const auto step = [&] {
      fsdp.begin();
      const auto loss = loss_of(net.forward(input(2), &fsdp));
      if (outer.rank() == 1) {
        group->abort("rank 1 was asked to stop");
      }
      loss.backward();
      fsdp.finish();
    };
    EXPECT_THROW(step(), collective::CollectiveError);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(before[i].equal(fsdp.parameters()[i]));
    }
  });
}

TEST(Fsdp, RefusesWhatItCannotShard) {
  run_ranks(1, [](Communicator& group) {
    const auto refusal =
        [&](const NamedTensors& named,
            const std::vector<std::vector<at::Tensor>>& blocks) {
          try {
            Fsdp fsdp(named, blocks, group);
          } catch (const std::invalid_argument& failure) {
            return std::string(failure.what());
          }
          return std::string();
        };
    const auto a = at::ones({4}).requires_grad_(true);
    const auto scalar = at::ones({}).requires_grad_(true);
    EXPECT_NE(refusal({}, {}), "");
    EXPECT_NE(refusal({{"a", a}}, {{a}, {a}}).find("share"), std::string::npos);
    EXPECT_NE(
        refusal({{"s", scalar}}, {}).find("'s' cannot be sharded"),
        std::string::npos);
    EXPECT_NE(
        refusal({{"a", a}}, {{at::ones({2})}}).find("does not name"),
        std::string::npos);
    EXPECT_NE(
        refusal({{"a", at::ones({2})}}, {}).find("no trainable"),
        std::string::npos);
  });
}

class FsdpOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU here";
    }
  }
};

// The ranks share the first GPU; `kind` carries what they exchange.
void compare_on_gpu(int world, const std::string& kind) {
  const auto expected = reference_gradients(3 * world);
  run_ranks(
      world,
      [&](Communicator& group) {
        Net net;
        net.to(at::kCUDA);
        Fsdp fsdp(net.named(), net.block_parameters(), group);
        const auto mine =
            slice_of(input(3 * group.size()), group).to(at::kCUDA);
        for (int step = 0; step < 3; ++step) {
          fsdp.begin();
          (loss_of(net.forward(mine, &fsdp)) / group.size()).backward();
          fsdp.finish();
          std::vector<at::Tensor> gradients;
          for (const auto& gradient : fsdp.gradients()) {
            EXPECT_TRUE(gradient.is_cuda());
            gradients.push_back(gradient.to(at::kCPU));
          }
          expect_parts(fsdp, gradients, expected);
        }
      },
      {.kind = kind, .device = 0});
}

TEST_F(FsdpOnGpu, TwoRanksShareAGpuThroughHostMemory) {
  compare_on_gpu(2, "host");
}

TEST_F(FsdpOnGpu, NcclMovesWhatLiesOnTheGpu) {
  if (collective::available_kinds().back() != "nccl") {
    GTEST_SKIP() << "no nccl in this build";
  }
  compare_on_gpu(1, "nccl");
}

}  // namespace
}  // namespace lockstep::parallel
