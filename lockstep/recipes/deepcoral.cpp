#include "lockstep/recipes/deepcoral.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/data/sampler.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/classifier.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {
namespace {

constexpr std::array<float, 3> kImagenetMean = {.485F, .456F, .406F};
constexpr std::array<float, 3> kImagenetStd = {.229F, .224F, .225F};
constexpr uint64_t kTargetOrder = 0x746172676574;  // apart from the source's

// The target's batches by their number, pass after pass without an end: which
// one a step gets depends on the step alone, so a resumed run sees the same.
class TargetBatches {
 public:
  TargetBatches(
      std::shared_ptr<const data::Dataset> dataset,
      data::LoaderOptions options)
      : loader_(std::move(dataset), endless(std::move(options))) {}
  data::Batch get(int64_t number) {
    if (number != next_) {
      loader_.start(0, number);
    }
    next_ = number + 1;
    return std::move(loader_.next().value());
  }

 private:
  static data::LoaderOptions endless(data::LoaderOptions options) {
    options.epoch_batches = std::numeric_limits<int64_t>::max();
    options.seed ^= kTargetOrder;
    return options;
  }
  data::Loader loader_;
  int64_t next_ = -1;
};

class DeepcoralRecipe : public train::Recipe {
 public:
  DeepcoralRecipe(const DeepcoralConfig& config, const train::Context& context)
      : config_(config),
        context_(context),
        domains_(open_domains(config.data, context)),
        trainer_(
            config.options(
                domains_.source->channels(),
                static_cast<int64_t>(domains_.source->classes().size())),
            config.optim,
            context) {
    if (!context.training) {
      return;
    }
    make_loaders();
    if (!config.model.weights.empty()) {
      load_backbone();
    }
  }

  std::string name() const override { return "deepcoral"; }
  data::Loader& loader() override { return *source_; }
  train::Datasets datasets() const override {
    return {domains_.source, domains_.target};
  }
  std::vector<std::string> metrics() const override {
    return TransferTrainer::metrics();
  }

  std::map<std::string, std::string> facts() const override {
    auto facts = common_facts(config_.data, config_.optim);
    facts["model"] = config_.model.backbone;
    facts["source"] = config_.data.source;
    facts["target"] = config_.data.target;
    facts["transfer_loss"] = fmt::format(
        "{} x {}", config_.transfer_loss, config_.transfer_loss_weight);
    facts["covariance"] = config_.covariance;
    if (context_.trainer.rehearse > 0) {
      auto options = test_options();
      facts["validation_part"] = fmt::format(
          "{}", cut_for_rehearsal(options, *domains_.target, context_));
    }
    return facts;
  }

  train::StepOutput step(const train::StepInput& input) override {
    std::vector<TransferTrainer::Micro> micros;
    int64_t number = (input.step - 1) * context_.trainer.accumulate;
    for (const auto& batch : input.batches) {
      micros.push_back(
          {batch.images,
           batch.labels,
           target_->get(number++).images,
           input.weight(batch)});
    }
    const double lr =
        train::learning_rate(config_.optim, input.step, input.total_steps);
    return trainer_.step(micros, config_.scale_lr ? lr * context_.world() : lr);
  }

  std::map<std::string, double> validate() override {
    return evaluate().values;
  }
  train::Evaluation evaluate() override;
  Best best() const override { return {"val_accuracy", false}; }
  parallel::NamedTensors tensors() override {
    return train::named_state(trainer_.model());
  }
  parallel::NamedTensors extra() override {
    return prefixed(trainer_.optimizer().state(), "optim.");
  }
  std::vector<std::string> classes() const override {
    return domains_.source->classes();
  }

 private:
  data::LoaderOptions loader_options_for(const data::Dataset& dataset) const {
    auto options = loader_options(config_.data, context_, dataset);
    options.mean = kImagenetMean;
    options.stddev = kImagenetStd;
    return options;
  }
  data::LoaderOptions test_options() const {
    auto config = config_.data;
    config.batch_size = std::min<int64_t>(
        config.batch_size,
        std::max<int64_t>(1, domains_.target->size() / context_.world()));
    auto options = loader_options(config, context_, *domains_.target);
    options.mean = kImagenetMean;
    options.stddev = kImagenetStd;
    options.shuffle = false;
    options.pad = false;  // every image once
    return options;
  }
  void make_loaders();
  void load_backbone();

  DeepcoralConfig config_;
  train::Context context_;
  Domains domains_;
  TransferTrainer trainer_;
  std::optional<data::Loader> source_;  // none when only tested
  std::optional<TargetBatches> target_;
};

// Only whole batches: a covariance of a few samples says little.
void DeepcoralRecipe::make_loaders() {
  const auto for_training = [&](const data::Dataset& dataset) {
    auto options = loader_options_for(dataset);
    options.crop_from = config_.data.crop_from();
    options.flip = config_.data.flip;
    options.drop_last = true;
    return options;
  };
  auto source = for_training(*domains_.source);
  const auto target = for_training(*domains_.target);
  if (config_.epoch_based_training) {
    const auto batches = [&](const data::Dataset& dataset) {
      return data::batches_per_epoch(
          dataset.size(), context_.world(), config_.data.batch_size, true);
    };
    source.epoch_batches =
        std::min(batches(*domains_.source), batches(*domains_.target));
  } else {
    source.epoch_batches = config_.n_iter_per_epoch;
  }
  source_.emplace(domains_.source, source);
  target_.emplace(domains_.target, target);
}

// All of it: a part of another network's weights is of no use. Rank 0 alone:
// its weights become everybody's.
void DeepcoralRecipe::load_backbone() {
  if (context_.rank() != 0) {
    return;
  }
  train::WeightsOptions options;
  options.head = "";  // the backbone has none
  options.names = "torchvision";
  const auto tensors = train::named_state(trainer_.model().backbone());
  const auto report =
      train::load_weights(config_.model.weights, tensors, options);
  log_info(report.to_string());
  // Files from before PyTorch 0.4 have no counts, which nothing reads.
  std::vector<std::string> missing;
  for (const auto& line : report.missing) {
    if (line.find(".num_batches_tracked ") == std::string::npos) {
      missing.push_back(line);
    }
  }
  if (missing.empty()) {
    return;
  }
  const size_t shown = std::min<size_t>(3, missing.size());
  throw train::TrainError(
      train::kBadInput,
      fmt::format(
          "{}: lacks {} of the {} tensors of model.backbone={}: {}{}; take the "
          "backbone that the file was made for",
          config_.model.weights,
          missing.size(),
          tensors.size(),
          config_.model.backbone,
          fmt::join(missing.begin(), missing.begin() + shown, ", "),
          missing.size() > shown ? ", ..." : ""));
}

train::Evaluation DeepcoralRecipe::evaluate() {
  trainer_.share_statistics();
  auto options = test_options();
  cut_for_rehearsal(options, *domains_.target, context_);
  data::Loader loader(domains_.target, options);
  train::ClassifierTest test;
  test.classes = domains_.source->classes();
  test.logits = [this](const at::Tensor& images) {
    return trainer_.logits(images);
  };
  return train::test_classifier(loader, test, context_);
}

}  // namespace

DeepcoralConfig::DeepcoralConfig() {
  trainer.max_epochs = 100;
  data.name = "folder";
  data.batch_size = 32;
  data.image_size = 224;
  optim.name = "sgd";
  optim.lr = 1e-3;
  optim.momentum = .9;
  optim.weight_decay = 5e-4;
  optim.schedule = "inverse";
}

void DeepcoralConfig::Model::bind(config::Binder& b) {
  b.choice(
      "backbone", backbone, models::backbone_names(), "torchvision's name");
  b.field("use_bottleneck", use_bottleneck, "a linear layer before the head");
  b.field("bottleneck", bottleneck, "its width", config::between(1, 65536));
  b.field("dropout", dropout, "of alexnet and dann", config::between(0, .99));
  b.field(
      "backbone_rate",
      backbone_rate,
      "the backbone's share of the learning rate; the heads have all of it",
      config::at_least(0));
  b.field(
      "weights",
      weights,
      "safetensors file with torchvision's names, for the backbone");
}

void DeepcoralConfig::bind(config::Binder& b) {
  b.group("trainer", trainer, "the loop");
  b.group("data", data, "the two domains");
  b.group("optim", optim, "the optimiser");
  b.group("model", model, "the network");
  b.choice(
      "transfer_loss",
      transfer_loss,
      {"coral", "mmd"},
      "distance between the features of source and target");
  b.field(
      "transfer_loss_weight",
      transfer_loss_weight,
      "its weight; 0: no adaptation",
      config::at_least(0));
  b.choice(
      "covariance",
      covariance,
      {"rank", "global"},
      "coral's: of each rank's batch, or of all ranks' together");
  b.field(
      "epoch_based_training",
      epoch_based_training,
      "an epoch is a pass through the smaller domain; else n_iter_per_epoch");
  b.field(
      "n_iter_per_epoch",
      n_iter_per_epoch,
      "batches an epoch where it is not epoch-based",
      config::at_least(1));
  b.field("scale_lr", scale_lr, "learning rate times the number of ranks");
  b.field("out", out, "run directory; default: runs/<id>");
  b.field("checkpoint", checkpoint, "file for the verb 'test'");
}

TransferTrainerOptions DeepcoralConfig::options(
    int64_t channels,
    int64_t classes) const {
  TransferTrainerOptions result;
  result.model.backbone.name = model.backbone;
  result.model.backbone.image_size = data.image_size;
  result.model.backbone.channels = channels;
  result.model.backbone.dropout = model.dropout;
  result.model.bottleneck = model.use_bottleneck ? model.bottleneck : 0;
  result.model.classes = classes;
  result.loss = transfer_loss;
  result.weight = transfer_loss_weight;
  result.global = covariance == "global";
  result.backbone_rate = model.backbone_rate;
  return result;
}

namespace {

// Also when a folder has two spellings.
bool is_same_domain(const DomainsConfig& data) {
  const std::filesystem::path root = data.root;
  std::error_code absent;
  return data.source == data.target ||
         std::filesystem::equivalent(
             root / data.source, root / data.target, absent);
}

// What single keys cannot tell; throws std::invalid_argument.
void check_config(const DeepcoralConfig& config) {
  const auto refuse = [](const std::string& why) {
    throw std::invalid_argument("deepcoral: " + why);
  };
  models::check_options(config.options(3, 2).model.backbone);
  const auto& data = config.data;
  if (data.name != "folder" && data.name != "synthetic") {
    refuse(
        fmt::format(
            "data={} has no domains; accepted: folder, synthetic", data.name));
  }
  if (data.name == "folder" &&
      (data.root.empty() || data.source.empty() || data.target.empty())) {
    refuse(
        "needs data.root, a folder of domains, and data.source and "
        "data.target, two of them");
  }
  if (data.name == "folder" && is_same_domain(data)) {
    refuse(
        fmt::format(
            "data.source '{}' and data.target '{}' are the same; adaptation "
            "needs two",
            data.source,
            data.target));
  }
  if (data.batch_size == 1) {
    refuse(
        "data.batch_size=1: the distance between domains needs 2 samples of "
        "each and more");
  }
  if (data.crop_from() < data.image_size) {
    refuse(
        fmt::format(
            "data.resize={} is smaller than data.image_size={}",
            data.resize,
            data.image_size));
  }
  if (config.covariance == "global" && config.transfer_loss != "coral") {
    refuse("covariance=global is for transfer_loss=coral");
  }
  if (config.trainer.balance != "none") {
    refuse("trainer.balance would give ranks unequal domains; accepted: none");
  }
  refuse_extras(config.trainer, config.data, "deepcoral");
}

}  // namespace

Entry deepcoral_entry() {
  Entry entry;
  entry.name = "deepcoral";
  entry.summary = "classifier that adapts to a domain without labels";
  entry.add_groups = [](config::Groups& groups) {
    groups.add(
        "experiment",
        "small",
        "data: {image_size: 32, batch_size: 32}\n"
        "model: {backbone: resnet18, backbone_rate: 1}\n"
        "optim: {lr: 0.01}\n");
  };
  entry.prepare = [](const config::Node& node, int world_size) {
    return prepare_recipe<DeepcoralConfig, DeepcoralRecipe>(
        node, world_size, check_config);
  };
  entry.describe = [] { return config::describe<DeepcoralConfig>(); };
  return entry;
}

}  // namespace lockstep::recipes
