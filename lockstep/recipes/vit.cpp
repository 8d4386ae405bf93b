#include "lockstep/recipes/vit.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>

#include "lockstep/data/random.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/allocator.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/classifier.h"
#include "lockstep/train/ema.h"
#include "lockstep/train/error.h"
#include "lockstep/train/fit_batch.h"
#include "lockstep/train/precision.h"

namespace lockstep::recipes {
namespace {

using train::AutocastGuard;

constexpr int64_t kTestBatch = 256;  // where data.batch_size is auto

class VitRecipe : public train::Recipe {
 public:
  VitRecipe(const VitConfig& config, const train::Context& context)
      : config_(config),
        context_(context),
        training_(open_split(config.data, config.trainer, true)),
        test_(open_held_out(config.data, config.trainer)),
        trainer_(
            checked_options(),
            config.optim,
            config.label_smoothing,
            context) {
    trainer_.augment(augment_options());
    begin_average();  // before the search: it counts what this takes
    if (context.training) {
      check_batch(config_.data, context, *training_);
      fitted_ = train::fit_batch(config_.data, context, batch_trial());
      loader_.emplace(training_, training_options());
    }
    if (context.training && !config.model.weights.empty()) {
      trainer_.strategy().edit_whole([this] {
        load_pretrained(
            config_.model.weights,
            train::named_state(trainer_.model()),
            context_);
      });
      begin_average();
    }
  }

  std::string name() const override { return "vit"; }
  data::Loader& loader() override { return *loader_; }
  train::Datasets datasets() const override { return {training_, test_}; }
  std::vector<std::string> metrics() const override {
    return {"loss", "accuracy"};
  }

  std::map<std::string, std::string> facts() const override {
    auto facts = common_facts(config_.data, config_.optim);
    facts["model"] = config_.model.name;
    facts["recompute"] = train::to_string(fitted_.recompute);
    if (!fitted_.memory.empty()) {
      facts["batch_memory"] = fitted_.memory;
    }
    if (test_ && context_.trainer.rehearse > 0) {
      auto options = test_options();
      facts["validation_part"] =
          fmt::format("{}", cut_for_rehearsal(options, *test_, context_));
    }
    return facts;
  }

  train::StepOutput step(const train::StepInput& input) override {
    std::vector<VitTrainer::Micro> micros;
    for (const auto& batch : input.batches) {
      micros.push_back(
          {batch.images,
           batch.labels,
           input.weight(batch),
           batch_key(input.step, micros.size())});
    }
    try {
      auto output = trainer_.step(
          micros,
          train::learning_rate(config_.optim, input.step, input.total_steps));
      if (ema_) {
        ema_->update(input.step);
      }
      return output;
    } catch (const std::exception& failure) {
      if (!train::is_out_of_memory(failure)) {
        throw;
      }
      // Ranks that hold parts wait for this one: no time for trials.
      if (trainer_.strategy().shards()) {
        throw train::TrainError(
            train::kBadInput,
            fmt::format(
                "data.batch_size={} ran out of memory on rank {}; "
                "data.batch_size=auto finds what fits, a larger "
                "trainer.accumulate or trainer.recompute=block needs less",
                config_.data.batch_size,
                context_.rank()));
      }
    }
    // Outside of the handler: the exception held on to memory.
    throw train::batch_failure(
        config_.data.batch_size, context_, batch_trial());
  }

  std::map<std::string, double> validate() override {
    return evaluate().values;
  }
  train::Evaluation evaluate() override;
  Best best() const override { return {"val_accuracy", false}; }
  std::string model() const override {
    return fmt::format("heads={}", config_.options(1, 1).heads);
  }
  // With an average the plain names are the average's: what is tested and
  // published. The weights that training goes on with lie beside them.
  parallel::NamedTensors tensors() override {
    return ema_ ? join(ema_->averages(), train::named_buffers(trainer_.model()))
                : trainer_.strategy().state(
                      train::named_state(trainer_.model()));
  }
  parallel::NamedTensors extra() override {
    auto state = prefixed(trainer_.optimizer().state(), "optim.");
    return ema_ ? join(state, prefixed(ema_->parameters(), "raw.")) : state;
  }
  parallel::Placements placements() override {
    auto placements = trainer_.strategy().placements();
    auto all = with_optimizer(placements, "optim.");
    for (const auto& [name, placement] : placements) {
      all.emplace("raw." + name, placement);
    }
    return all;
  }
  std::vector<std::string> classes() const override {
    return config_.data.name == "folder" ? training_->classes()
                                         : std::vector<std::string>();
  }

 private:
  data::LoaderOptions training_options() const {
    auto options = loader_options(config_.data, context_, *training_);
    options.pixels = pixels();
    options.flip = config_.flip && !options.pixels;
    return options;
  }
  data::LoaderOptions test_options() const {
    auto config = config_.data;
    config.batch_size = std::min<int64_t>(
        config.batch_size > 0 ? config.batch_size : kTestBatch,
        std::max<int64_t>(1, test_->size() / context_.world()));
    auto options = loader_options(config, context_, *test_);
    options.shuffle = false;
    options.pad = false;  // every test image once
    options.pixels = context_.device.is_cuda() && pixels();
    return options;
  }
  // Whether images go to the device as they are. A CPU has loader threads for
  // the resizing, so there it pays only where crops need the original.
  bool pixels() const {
    return training_->image_size().height > 0 &&
           (context_.device.is_cuda() || config_.crop_padding > 0);
  }
  data::AugmentOptions augment_options() const {
    data::AugmentOptions options;
    options.image_size = config_.data.image_size;
    options.flip = config_.flip && pixels();
    options.padding = config_.crop_padding;
    options.mixup = config_.mixup;
    return options;
  }
  // Of the seed, the rank and the step alone, so that a resumed run draws the
  // same.
  uint64_t batch_key(int64_t step, size_t micro) const {
    return data::stream_key(
        data::stream_key(
            static_cast<uint64_t>(context_.trainer.seed),
            static_cast<uint64_t>(context_.rank())),
        static_cast<uint64_t>(step),
        micro);
  }
  // With the weights as they are now.
  void begin_average() {
    if (context_.training && config_.ema > 0) {
      ema_.emplace(
          config_.ema,
          trainer_.strategy().state(train::named_parameters(trainer_.model())));
    }
  }
  void check_classes() const;
  // Of a model for this data, which a classifier can be trained on.
  models::VitOptions checked_options() const {
    check_classes();
    return config_.options(
        training_->channels(),
        static_cast<int64_t>(training_->classes().size()));
  }
  train::BatchTrial batch_trial();

  VitConfig config_;
  train::Context context_;
  std::shared_ptr<data::Dataset> training_;
  std::shared_ptr<data::Dataset> test_;
  VitTrainer trainer_;
  std::optional<data::Loader> loader_;  // none when only tested
  train::FittedBatch fitted_;
  std::optional<train::Ema> ema_;
};

void VitRecipe::check_classes() const {
  if (training_->classes().empty()) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "{}: images without classes; a classifier needs folders "
            "<class>/*.png or *.jpg",
            config_.data.root));
  }
  if (training_->classes().size() == 1) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "the training data has one class, '{}'; a classifier needs two and "
            "more",
            training_->classes().front()));
  }
  if (!test_ || test_->classes() == training_->classes()) {
    return;
  }
  const auto ours = training_->classes();
  const auto theirs = test_->classes();
  for (const auto& name : theirs) {
    if (std::find(ours.begin(), ours.end(), name) == ours.end()) {
      throw train::TrainError(
          train::kBadInput,
          fmt::format(
              "{}: the held-out split has the class '{}', which the training "
              "split has not ({} classes against {}); both need the same",
              config_.data.root,
              name,
              theirs.size(),
              ours.size()));
    }
  }
  throw train::TrainError(
      train::kBadInput,
      fmt::format(
          "{}: the held-out split has {} of the training split's {} classes; "
          "both need the same, each with an image",
          config_.data.root,
          theirs.size(),
          ours.size()));
}

train::BatchTrial VitRecipe::batch_trial() {
  const auto& options = trainer_.model().options();
  const int64_t side = options.image_size / options.patch;
  const double tokens = static_cast<double>(side * side + 1);
  // Of a block: norms, qkv, attention, two halves of the MLP, residuals.
  const double floats = tokens * static_cast<double>(options.dim) *
                        static_cast<double>(options.depth) * 20;
  train::BatchTrial trial;
  trial.run = [this](int64_t count) { trainer_.trial(count); };
  trial.set_recompute = [this](train::Recompute mode) {
    trainer_.set_recompute(mode);
  };
  trial.buffers = trainer_.model().buffers();
  trial.shard = (training_->size() + context_.world() - 1) / context_.world();
  trial.image_bytes = static_cast<double>(
      options.channels * options.image_size * options.image_size * 4);
  trial.estimate = trial.image_bytes + floats * 4;
  if (VitStep::fits(options, context_) && !pixels()) {
    // Images of a folder come as floats and are moved to where a step reads.
    const bool moved = config_.crop_padding > 0 || config_.flip;
    trial.device_bytes = trial.image_bytes * (moved ? 2 : 1);
  }
  return trial;
}

train::Evaluation VitRecipe::evaluate() {
  if (!test_) {
    return {};
  }
  // Its blocks are of other sizes than a step's: what was measured for a step
  // would not hold with both kept.
  if (!fitted_.memory.empty()) {
    train::release_cached_memory();
  }
  torch::NoGradGuard no_grad;
  const train::Ema::InPlace averages(ema_ ? &*ema_ : nullptr);
  auto options = test_options();
  cut_for_rehearsal(options, *test_, context_);
  data::Loader loader(test_, options);
  const parallel::OpenGuard open(trainer_.strategy());
  train::ClassifierTest test;
  test.classes = training_->classes();
  test.logits = [this](const at::Tensor& images) {
    return trainer_.logits(trainer_.prepared(images));
  };
  // Ranks with fewer batches take part in gathering the weights for the rest.
  if (trainer_.strategy().shards()) {
    test.idle = [this] {
      const auto& shape = trainer_.model().options();
      trainer_.logits(
          at::zeros(
              {1, shape.channels, shape.image_size, shape.image_size},
              at::TensorOptions().device(context_.device)));
    };
  }
  return train::test_classifier(loader, test, context_);
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
  const auto within = [](double most) { return config::between(0, most); };
  b.field("patch", patch, "pixels a patch; 0: as named", within(1024));
  b.field("dim", dim, "width; 0: as named", within(65536));
  b.field("depth", depth, "blocks; 0: as named", within(1024));
  b.field("heads", heads, "attention heads; 0: as named", within(1024));
  b.field("weights", weights, "safetensors file with timm's names");
}

void VitConfig::bind(config::Binder& b) {
  b.group("trainer", trainer, "the loop");
  b.group("data", data, "what is learned");
  b.group("optim", optim, "the optimiser");
  b.group("model", model, "the network");
  b.field("flip", flip, "random horizontal flips in training");
  b.field(
      "crop_padding",
      crop_padding,
      "random crops out of an image with this many pixels around it",
      config::between(0, 512));
  b.field(
      "mixup",
      mixup,
      "images mixed in pairs by Beta(a, a) of this a; 0: not",
      config::between(0, 1000));
  b.field(
      "ema",
      ema,
      "decay of the moving average of weights that is validated and published; "
      "0: none",
      config::between(0, 1));
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
  TrainedOptions trained;
  trained.decays = [](const at::Tensor& tensor) {
    return tensor.dim() >= 2 && tensor.size(0) != 1;
  };
  const bool fast = VitStep::fits(options, context);
  trained.direct_gradients = fast;
  std::map<const models::VitBlock*, size_t> places;
  for (const auto& block : model_->blocks()) {
    places.emplace(block.get(), places.size());
    trained.blocks.push_back(block->parameters());
  }
  auto made = make_trained(*model_, optim, context_, trained);
  strategy_ = std::move(made.strategy);
  optimizer_ = std::move(made.optimizer);
  model_->run_blocks_by([this, places](
                            models::VitBlock& block,
                            const at::Tensor& tokens,
                            const models::Vit::RunBlock& run) {
    return strategy_->run_block(
        places.at(&block), tokens, [&](const at::Tensor& input) {
          return fast_ ? run(input) : run_block(block, input);
        });
  });
  if (fast) {
    fast_ = std::make_unique<VitStep>(
        *model_, *strategy_, *optimizer_, context_, label_smoothing);
  }
}

train::StepOutput VitTrainer::step(
    const std::vector<Micro>& micros,
    double lr) {
  if (fast_) {
    std::vector<VitStep::Batch> batches;
    for (const auto& micro : micros) {
      batches.push_back(fast_batch(micro));
    }
    return fast_->run(batches, lr);
  }
  at::Tensor metrics = at::zeros({2}, at::kDouble);
  strategy_->begin();
  for (size_t i = 0; i < micros.size(); ++i) {
    // Of this rank's samples: the last batch of an epoch may be smaller.
    const double share = micros[i].weight * context_.world();
    // One at a time: the device holds one batch, however many make a step.
    data::Augmented batch{
        micros[i].images.to(context_.device, /*non_blocking=*/true),
        micros[i].labels.to(context_.device, /*non_blocking=*/true)};
    if (augment_) {
      batch =
          data::augmented(batch.images, batch.labels, *augment_, micros[i].key);
    }
    const auto logits = this->logits(batch.images);
    const auto loss = this->loss(logits, batch);
    const auto& labels = batch.share < .5 ? batch.others : batch.labels;
    hold_until_last(*strategy_, i, micros.size());
    (loss * micros[i].weight).backward();
    metrics[0] += loss.item<double>() * share;
    metrics[1] += (logits.detach().argmax(1) == labels)
                      .to(at::kDouble)
                      .mean()
                      .item<double>() *
                  share;
  }
  const auto timing = strategy_->finish();
  optimizer_->step(strategy_->gradients(), lr);
  return {metrics, timing};
}

VitStep::Batch VitTrainer::fast_batch(const Micro& micro) const {
  VitStep::Batch batch;
  batch.images = micro.images;
  batch.labels = micro.labels;
  batch.weight = micro.weight;
  if (!augment_) {
    return batch;
  }
  const bool bytes = micro.images.scalar_type() == at::kByte;
  const auto drawn = data::draw(micro.labels.size(0), *augment_, micro.key);
  batch.partners = drawn.partners;
  batch.share = drawn.share;
  if (bytes) {
    batch.moves = drawn.moves;
  } else if (augment_->padding > 0 || augment_->flip) {
    // Of different sizes on disk: the loader resized them.
    auto only_moved = *augment_;
    only_moved.mixup = 0;
    batch.images = data::augmented(
                       micro.images.to(context_.device, /*non_blocking=*/true),
                       micro.labels,
                       only_moved,
                       micro.key)
                       .images;
  }
  return batch;
}

void VitTrainer::augment(const data::AugmentOptions& options) {
  augment_ = options;
  if (fast_) {
    fast_->read_pixels(options.padding, options.mean, options.stddev);
  }
}

void VitTrainer::set_recompute(train::Recompute mode) {
  recompute_ = mode;
  if (fast_) {
    using models::Keep;
    model_->use_kernels(
        mode == train::Recompute::kNone        ? Keep::kAll
        : mode == train::Recompute::kAttention ? Keep::kCheap
                                               : Keep::kLeast,
        strategy_->shards());
  }
}

void VitTrainer::trial(int64_t count) {
  if (fast_) {
    fast_->trial(count);
    return;
  }
  const auto& options = model_->options();
  // As a step's: fp32, whatever the weights are.
  const auto images = at::zeros(
      {count, options.channels, options.image_size, options.image_size},
      at::TensorOptions(at::kFloat)
          .device(context_.device)
          .memory_format(at::MemoryFormat::ChannelsLast));
  const auto labels =
      at::zeros({count}, at::TensorOptions(at::kLong).device(context_.device));
  strategy_->rehearse([&] { loss(logits(images), labels).backward(); });
}

at::Tensor VitTrainer::run_block(
    models::VitBlock& block,
    const at::Tensor& tokens) const {
  using train::Recompute;
  using train::recomputed;
  switch (recompute_) {
    case Recompute::kAttention:
      return block.expand(recomputed(
          [&block](const at::Tensor& x) { return block.attend(x); }, tokens));
    case Recompute::kBlock:
      return recomputed(
          [&block](const at::Tensor& x) { return block.forward(x); }, tokens);
    case Recompute::kNone:
      break;
  }
  return block.forward(tokens);
}

at::Tensor VitTrainer::loss(const at::Tensor& logits, const at::Tensor& labels)
    const {
  return at::cross_entropy_loss(
      logits, labels, {}, at::Reduction::Mean, -100, label_smoothing_);
}

at::Tensor VitTrainer::loss(
    const at::Tensor& logits,
    const data::Augmented& batch) const {
  const auto own = loss(logits, batch.labels);
  return batch.others.defined()
             ? at::lerp(loss(logits, batch.others), own, batch.share)
             : own;
}

at::Tensor VitTrainer::prepared(const at::Tensor& images) const {
  return images.scalar_type() == at::kByte && !fast_
             ? data::normalised(images, augment_.value())
             : images;
}

at::Tensor VitTrainer::logits(const at::Tensor& images) {
  if (fast_) {
    return fast_->logits(images);
  }
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
