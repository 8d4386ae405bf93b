#include "lockstep/recipes/vit_step.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <mutex>

#include "lockstep/collective/factory.h"
#include "lockstep/data/augment.h"
#include "lockstep/parallel/rank_threads_test.h"
#include "lockstep/recipes/setup.h"

// The step on kernels against the step on LibTorch's operations, from the same
// pixels and draws. Here through the CPU's twins, in fp32.

namespace lockstep::recipes {
namespace {

const models::VitOptions kShape{
    .image_size = 12,
    .patch = 4,
    .channels = 3,
    .classes = 5,
    .dim = 24,
    .depth = 2,
    .heads = 3};

train::OptimConfig optim() {
  train::OptimConfig config;
  config.name = "adamw";
  config.weight_decay = .05;
  config.clip = .5;
  return config;
}

std::shared_ptr<models::Vit> make_model(const train::Context& context) {
  at::manual_seed(3);
  auto model = std::make_shared<models::Vit>(kShape);
  torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.add_(at::randn_like(parameter) * .1);
  }
  place(*model, context);
  return model;
}

struct Side {
  std::unique_ptr<collective::Communicator> group = collective::make_single();
  train::Context context;
  std::shared_ptr<models::Vit> model;
  Trained trained;

  Side() {
    context.group = group.get();
    model = make_model(context);
    trained = make_trained(*model, optim(), context);
  }
};

TEST(VitStep, LearnsWhatThePlainStepLearns) {
  data::AugmentOptions augment;
  augment.image_size = 12;
  augment.flip = true;
  augment.padding = 2;
  for (const double mixup : {0., .8}) {
    augment.mixup = mixup;
    Side plain;
    Side ours;
    VitStep step(
        *ours.model,
        *ours.trained.strategy,
        *ours.trained.optimizer,
        ours.context,
        .1);
    step.read_pixels(augment.padding, augment.mean, augment.stddev);
    for (uint64_t key = 1; key <= 3; ++key) {
      const auto pixels =
          at::randint(256, {6, 7, 7, 3}, at::kByte).permute({0, 3, 1, 2});
      const auto labels = at::randint(5, {6}, at::kLong);
      VitStep::Batch batch;
      batch.images = pixels;
      batch.labels = labels;
      const auto drawn = data::draw(6, augment, key);
      batch.moves = drawn.moves;
      batch.partners = drawn.partners;
      batch.share = drawn.share;
      const auto metrics = step.run({batch}, .01).metrics.clone();

      const auto reference = data::augmented(pixels, labels, augment, key);
      plain.trained.strategy->begin();
      const auto logits = plain.model->forward(reference.images);
      const auto loss_of = [&](const at::Tensor& wanted) {
        return at::cross_entropy_loss(
            logits, wanted, {}, at::Reduction::Mean, -100, .1);
      };
      auto loss = loss_of(labels);
      if (reference.others.defined()) {
        loss = at::lerp(loss_of(reference.others), loss, reference.share);
      }
      loss.backward();
      plain.trained.strategy->finish();
      plain.trained.optimizer->step(plain.trained.strategy->gradients(), .01);
      EXPECT_NEAR(metrics[0].item<double>(), loss.item<double>(), 1e-4)
          << "step " << key << " mixup " << mixup;
      const auto names = plain.model->named_parameters().keys();
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i].ends_with("qkv.bias")) {
          // The softmax does not see the keys' bias: its gradient is rounding,
          // and Adam takes the sign of it.
          continue;
        }
        EXPECT_TRUE(
            at::allclose(
                ours.model->parameters()[i],
                plain.model->parameters()[i],
                1e-3,
                2e-4))
            << names[i] << " after step " << key;
      }
    }
    const auto pixels =
        at::randint(256, {4, 7, 7, 3}, at::kByte).permute({0, 3, 1, 2});
    EXPECT_TRUE(
        at::allclose(
            step.logits(pixels),
            plain.model->forward(data::normalised(pixels, augment)),
            1e-3,
            1e-2));
  }
}

TEST(VitStep, SeveralBatchesMakeOneStep) {
  Side whole;
  Side parts;
  const auto make = [](Side& side) {
    return std::make_unique<VitStep>(
        *side.model,
        *side.trained.strategy,
        *side.trained.optimizer,
        side.context,
        0);
  };
  const auto one = make(whole);
  const auto two = make(parts);
  const auto pixels =
      at::randint(256, {6, 12, 12, 3}, at::kByte).permute({0, 3, 1, 2});
  const auto labels = at::randint(5, {6}, at::kLong);
  const auto part = [&](int64_t begin, int64_t end) {
    VitStep::Batch batch;
    batch.images = pixels.slice(0, begin, end);
    batch.labels = labels.slice(0, begin, end);
    batch.weight = static_cast<double>(end - begin) / 6;
    return batch;
  };
  const auto expected = one->run({part(0, 6)}, .01).metrics;
  const auto metrics = two->run({part(0, 4), part(4, 6)}, .01).metrics;
  EXPECT_NEAR(metrics[0].item<double>(), expected[0].item<double>(), 1e-5);
  EXPECT_NEAR(metrics[1].item<double>(), expected[1].item<double>(), 1e-6);
  for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
    EXPECT_TRUE(
        at::allclose(
            parts.model->parameters()[i],
            whole.model->parameters()[i],
            1e-3,
            1e-4));
  }
}

// A rank of a group that has its weights in parts.
struct ShardedSide {
  train::Context context;
  std::shared_ptr<models::Vit> model;
  Trained trained;

  explicit ShardedSide(collective::Communicator& group) {
    static std::mutex building;  // LibTorch's generator is everybody's
    context.group = &group;
    context.trainer.strategy = "fsdp";
    TrainedOptions options;
    {
      const std::scoped_lock lock(building);
      model = make_model(context);
    }
    for (const auto& block : model->blocks()) {
      options.blocks.push_back(block->parameters());
    }
    options.direct_gradients = true;
    trained = make_trained(*model, optim(), context, options);
    model->run_blocks_by([this](
                             models::VitBlock& block,
                             const at::Tensor& tokens,
                             const models::Vit::RunBlock& run) {
      const size_t index = model->blocks().front().get() == &block ? 0 : 1;
      return trained.strategy->run_block(index, tokens, run);
    });
  }
};

// Two ranks with half of each batch each, in one part or in two.
TEST(VitStep, RanksThatShardLearnWhatOneRankLearns) {
  using models::Keep;
  const auto pixels =
      at::randint(256, {8, 12, 12, 3}, at::kByte).permute({0, 3, 1, 2});
  const auto labels = at::randint(5, {8}, at::kLong);
  const auto part = [&](int64_t begin, int64_t end) {
    VitStep::Batch batch;
    batch.images = pixels.slice(0, begin, end);
    batch.labels = labels.slice(0, begin, end);
    batch.weight = static_cast<double>(end - begin) / 8;
    return batch;
  };
  constexpr int kSteps = 3;
  Side whole;
  VitStep one(
      *whole.model,
      *whole.trained.strategy,
      *whole.trained.optimizer,
      whole.context,
      .1);
  for (int i = 0; i < kSteps; ++i) {
    one.run({part(0, 8)}, .01);
  }
  const auto expected = one.logits(pixels);
  for (const Keep keep : {Keep::kAll, Keep::kCheap, Keep::kLeast}) {
    for (const bool accumulate : {false, true}) {
      parallel::run_ranks(2, [&](collective::Communicator& group) {
        ShardedSide side(group);
        auto& strategy = *side.trained.strategy;
        VitStep step(
            *side.model, strategy, *side.trained.optimizer, side.context, .1);
        side.model->use_kernels(keep, true);
        EXPECT_FALSE(side.trained.optimizer->runs_async())
            << "clipping needs the norm of all ranks";
        step.trial(2);  // leaves no trace
        const int64_t at = 4 * group.rank();
        for (int i = 0; i < kSteps; ++i) {
          accumulate ? step.run({part(at, at + 1), part(at + 1, at + 4)}, .01)
                     : step.run({part(at, at + 4)}, .01);
        }
        const parallel::OpenGuard open(strategy);
        EXPECT_TRUE(at::allclose(step.logits(pixels), expected, 1e-3, 1e-3));
      });
    }
  }
}

TEST(VitStep, IsForBf16OnAGpuAndShapesThatKernelsTake) {
  Side side;
  auto context = side.context;
  const auto base = models::vit_options("vit_base_patch32_224");
  EXPECT_FALSE(VitStep::fits(base, context));
  context.device = at::kCUDA;
  EXPECT_FALSE(VitStep::fits(base, context)) << "fp32";
  context.trainer.precision = "bf16";
  EXPECT_TRUE(VitStep::fits(base, context));
}

}  // namespace
}  // namespace lockstep::recipes
