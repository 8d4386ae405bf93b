#include "lockstep/recipes/vit.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/precision.h"

namespace lockstep::recipes {
namespace {

using train::AutocastGuard;

class VitRecipe : public train::Recipe {
 public:
  VitRecipe(const VitConfig& config, const train::Context& context)
      : config_(config),
        context_(context),
        training_(open_split(config.data, config.trainer, true)),
        test_(open_held_out(config.data, config.trainer)),
        trainer_(
            config.options(
                training_->channels(),
                static_cast<int64_t>(training_->classes().size())),
            config.optim,
            config.label_smoothing,
            context),
        loader_(training_, training_options()) {
    if (!config.model.weights.empty() && context.rank() == 0) {
      log_info(
          train::load_weights(
              config.model.weights,
              train::named_state(trainer_.model()),
              "head."));
    }
  }

  std::string name() const override { return "vit"; }
  data::Loader& loader() override { return loader_; }
  std::vector<std::string> metrics() const override {
    return {"loss", "accuracy"};
  }

  std::map<std::string, std::string> facts() const override {
    auto facts = common_facts(config_.data, config_.optim);
    facts["model"] = config_.model.name;
    return facts;
  }

  train::StepOutput step(const train::StepInput& input) override {
    std::vector<VitTrainer::Micro> micros;
    for (const auto& batch : input.batches) {
      micros.push_back(
          {batch.images.to(context_.device, /*non_blocking=*/true),
           batch.labels.to(context_.device, /*non_blocking=*/true),
           input.weight(batch, context_.world())});
    }
    return trainer_.step(
        micros,
        train::learning_rate(config_.optim, input.step, input.total_steps));
  }

  std::map<std::string, double> validate() override;
  Best best() const override { return {"val_accuracy", false}; }
  parallel::NamedTensors tensors() override {
    return train::named_state(trainer_.model());
  }
  parallel::NamedTensors extra() override {
    return prefixed(trainer_.optimizer().state(), "optim.");
  }

 private:
  data::LoaderOptions training_options() const {
    auto options = loader_options(config_.data, context_, *training_);
    options.flip = config_.flip;
    return options;
  }

  VitConfig config_;
  train::Context context_;
  std::shared_ptr<data::Dataset> training_;
  std::shared_ptr<data::Dataset> test_;
  VitTrainer trainer_;
  data::Loader loader_;
};

std::map<std::string, double> VitRecipe::validate() {
  if (!test_) {
    return {};
  }
  torch::NoGradGuard no_grad;
  auto config = config_.data;
  config.batch_size = std::min<int64_t>(
      config.batch_size,
      std::max<int64_t>(1, test_->size() / context_.world()));
  auto options = loader_options(config, context_, *test_);
  options.shuffle = false;
  options.pad = false;  // every test image once
  data::Loader loader(test_, options);
  double sums[] = {0, 0, 0};  // loss, right, samples
  loader.start(0);
  while (auto batch = loader.next()) {
    const auto labels = batch->labels.to(context_.device);
    const auto logits = trainer_.logits(batch->images.to(context_.device));
    sums[0] += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum)
                   .item<double>();
    sums[1] += (logits.argmax(1) == labels).sum().item<double>();
    sums[2] += static_cast<double>(batch->size);
  }
  context_.group->all_reduce(
      sums, 3, collective::DataType::kFloat64, collective::ReduceOp::kSum);
  return {{"val_loss", sums[0] / sums[2]}, {"val_accuracy", sums[1] / sums[2]}};
}

}  // namespace

VitConfig::VitConfig() {
  trainer.max_epochs = 10;
  data.batch_size = 64;
  data.image_size = 224;
  optim.name = "adamw";
  optim.lr = 5e-4;
  optim.weight_decay = .05;
  optim.schedule = "cosine";
}

void VitConfig::Model::bind(config::Binder& b) {
  b.choice("name", name, models::vit_names(), "timm's name of the model");
  b.field("patch", patch, "pixels a patch; 0: as named", config::at_least(0));
  b.field("dim", dim, "width; 0: as named", config::at_least(0));
  b.field("depth", depth, "blocks; 0: as named", config::at_least(0));
  b.field("heads", heads, "attention heads; 0: as named", config::at_least(0));
  b.field("weights", weights, "safetensors file with timm's names");
}

void VitConfig::bind(config::Binder& b) {
  b.group("trainer", trainer, "the loop");
  b.group("data", data, "what is learned");
  b.group("optim", optim, "the optimiser");
  b.group("model", model, "the network");
  b.field("flip", flip, "random horizontal flips in training");
  b.field(
      "label_smoothing",
      label_smoothing,
      "share of the label spread over all classes",
      config::between(0, 1));
  b.field("out", out, "run directory; default: runs/<id>");
  b.field("checkpoint", checkpoint, "file for the verb 'test'");
}

models::VitOptions VitConfig::options(int64_t channels, int64_t classes) const {
  auto result = models::vit_options(model.name);
  result.image_size = data.image_size;
  result.channels = channels;
  result.classes = classes;
  const auto take = [](int64_t given, int64_t& value) {
    if (given > 0) {
      value = given;
    }
  };
  take(model.patch, result.patch);
  take(model.dim, result.dim);
  take(model.depth, result.depth);
  take(model.heads, result.heads);
  return result;
}

VitTrainer::VitTrainer(
    const models::VitOptions& options,
    const train::OptimConfig& optim,
    double label_smoothing,
    const train::Context& context)
    : context_(context), label_smoothing_(label_smoothing) {
  at::manual_seed(static_cast<uint64_t>(context.trainer.seed));
  model_ = std::make_shared<models::Vit>(options);
  place(*model_, context);
  // Biases, norms, the class token and positions are not shrunk.
  auto made =
      make_trained(*model_, optim, context_, [](const at::Tensor& tensor) {
        return tensor.dim() >= 2 && tensor.size(0) != 1;
      });
  ddp_ = std::move(made.ddp);
  optimizer_ = std::move(made.optimizer);
}

train::StepOutput VitTrainer::step(
    const std::vector<Micro>& micros,
    double lr) {
  at::Tensor metrics = at::zeros({2}, at::kDouble);
  ddp_->begin();
  for (size_t i = 0; i < micros.size(); ++i) {
    // Of this rank's samples: the last batch of an epoch may be smaller.
    const double share = micros[i].weight * context_.world();
    const auto logits = this->logits(micros[i].images);
    const auto loss = at::cross_entropy_loss(
        logits,
        micros[i].labels,
        {},
        at::Reduction::Mean,
        -100,
        label_smoothing_);
    hold_until_last(*ddp_, i, micros.size());
    (loss * micros[i].weight).backward();
    metrics[0] += loss.item<double>() * share;
    metrics[1] += (logits.detach().argmax(1) == micros[i].labels)
                      .to(at::kDouble)
                      .mean()
                      .item<double>() *
                  share;
  }
  const auto timing = ddp_->finish();
  optimizer_->step(ddp_->gradients(), lr);
  return {metrics, timing};
}

at::Tensor VitTrainer::logits(const at::Tensor& images) {
  AutocastGuard autocast(context_.device, context_.trainer.precision);
  return train::widened(model_->forward(images));
}

Entry vit_entry() {
  Entry entry;
  entry.name = "vit";
  entry.summary = "vision transformer that classifies images";
  entry.add_groups = [](config::Groups& groups) {
    groups.add(
        "experiment",
        "tiny",
        "data: {image_size: 32, batch_size: 64}\n"
        "model: {name: vit_tiny_patch16_224, patch: 4, depth: 6}\n"
        "optim: {lr: 1e-3, warmup_steps: 100}\n");
  };
  entry.prepare = [](const config::Node& node, int world_size) {
    return prepare_recipe<VitConfig, VitRecipe>(
        node, world_size, [](const VitConfig& config) {
          models::check_options(config.options(3, 10));
        });
  };
  entry.describe = [] { return config::describe<VitConfig>(); };
  return entry;
}

}  // namespace lockstep::recipes
