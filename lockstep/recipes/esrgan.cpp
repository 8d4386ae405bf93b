#include "lockstep/recipes/esrgan.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/recipes/normal_images.h"
#include "lockstep/recipes/upscale.h"
#include "lockstep/train/error.h"
#include "lockstep/train/image_quality.h"
#include "lockstep/train/limits.h"
#include "lockstep/train/precision.h"

namespace lockstep::recipes {
namespace {

constexpr int64_t kShown = 4;  // rows of a sample sheet

// Synthetic images as large as they are wanted; others are resized anyway.
train::DataConfig source(const EsrganConfig& config) {
  auto data = config.data;
  data.image_size = std::max(config.hr_height, config.hr_width);
  return data;
}

train::DataConfig held_out_source(const EsrganConfig& config) {
  auto data = source(config);
  const int64_t most = config.validation_samples;  // 0: a test takes all
  if (most > 0) {
    data.limit = data.limit > 0 ? std::min(data.limit, most) : most;
  }
  return data;
}

// An image of less than half the wanted size shows nothing to learn from.
data::TolerantOptions tolerated(const EsrganConfig& config) {
  data::TolerantOptions options;
  options.min_height = static_cast<int>(config.hr_height / 2);
  options.min_width = static_cast<int>(config.hr_width / 2);
  return options;
}

// What is trained on; a test has no need of it.
std::shared_ptr<data::Dataset> open_images(
    const EsrganConfig& config,
    const train::Context& context) {
  if (context.training) {
    return open_split(source(config), config.trainer, true, tolerated(config));
  }
  auto images =
      open_held_out(held_out_source(config), config.trainer, tolerated(config));
  if (!images) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "'test' found no held-out images: {} has neither test/ nor val/",
            config.data.root));
  }
  return images;
}

class EsrganRecipe : public train::Recipe {
 public:
  EsrganRecipe(const EsrganConfig& config, const train::Context& context)
      : config_(config),
        context_(context),
        training_(open_images(config, context)),
        pair_(
            {.channels = training_->channels(),
             .residual_blocks = config.model.residual_blocks,
             .filters = config.model.filters},
            config.losses,
            config.optim,
            context),
        loader_(
            training_,
            sized(*training_, context.training ? config.data.batch_size : 1)) {
    if (!context.training) {
      held_out_ = training_;
    } else if (config.validation_samples > 0) {
      held_out_ = open_held_out(
          held_out_source(config), config.trainer, tolerated(config));
      read_held_out();
    }
    if (context.training && context.rank() == 0 &&
        config.trainer.max_epochs == 0 && config.trainer.max_steps == 0) {
      log_warning(
          fmt::format(
              "decay_epoch={} does nothing: the learning rate falls towards "
              "trainer.max_epochs or trainer.max_steps, and both are 0",
              config.decay_epoch));
    }
    if (context.training && !config.model.vgg.empty()) {
      pair_.load_vgg(config.model.vgg);
    } else if (context.training && context.rank() == 0) {
      log_warning(
          "model.vgg is not set: training without the content term; give "
          "VGG19's weights as a safetensors file with torchvision's names");
    }
  }

  std::string name() const override { return "esrgan"; }
  data::Loader& loader() override { return loader_; }
  train::Datasets datasets() const override { return {training_, held_out_}; }
  std::vector<std::string> metrics() const override {
    return {"loss_g", "loss_d", "loss_content", "loss_adv", "loss_pixel"};
  }
  std::string phase(int64_t step) const override {
    return warming(step) ? "warm-up" : "train";
  }

  std::map<std::string, std::string> facts() const override {
    auto facts = common_facts(config_.data, config_.optim);
    facts["image_size"] =
        fmt::format("{}x{}", config_.hr_height, config_.hr_width);
    facts["model"] = fmt::format(
        "residual_blocks={} filters={}",
        config_.model.residual_blocks,
        config_.model.filters);
    facts["content"] = config_.model.vgg.empty() ? "none" : "vgg19";
    facts["warmup_batches"] = std::to_string(config_.warmup_batches);
    return facts;
  }

  train::StepOutput step(const train::StepInput& input) override {
    std::vector<EsrganPair::Micro> micros;
    for (const auto& batch : input.batches) {
      micros.push_back({batch.small, batch.images, input.weight(batch)});
    }
    last_low_ = input.batches.front().small;
    return pair_.step(
        micros,
        decay(input.epoch, config_.decay_epoch, epochs(input.total_steps)) *
            train::learning_rate(config_.optim, input.step, input.total_steps),
        warming(input.step));
  }

  std::map<std::string, double> validate() override;
  Best best() const override { return {"val_psnr", false}; }
  parallel::NamedTensors tensors() override { return pair_.tensors(); }
  parallel::NamedTensors extra() override { return pair_.extra(); }
  int64_t draw_every() const override { return config_.sample_interval; }
  std::vector<train::Picture> draw() override;

 private:
  bool warming(int64_t step) const { return step <= config_.warmup_batches; }

  // Of the run, by trainer.max_steps where max_epochs is 0; 0: nobody knows.
  int64_t epochs(int64_t total_steps) const {
    const auto& trainer = config_.trainer;
    if (trainer.max_epochs > 0 || total_steps == 0) {
      return trainer.max_epochs;
    }
    const int64_t steps = train::steps_per_epoch(
        trainer, {loader_.batches(), loader_.batch_size() * context_.world()});
    return (total_steps + steps - 1) / steps;
  }

  data::LoaderOptions sized(const data::Dataset& dataset, int64_t batch) const {
    auto data = config_.data;
    data.batch_size = batch;
    auto options = loader_options(data, context_, dataset);
    options.image_height = static_cast<int>(config_.hr_height);
    options.image_width = static_cast<int>(config_.hr_width);
    options.shrink = static_cast<int>(models::kUpscale);
    options.resize = data::Resize::kBicubic;
    options.mean = kImageNetMean;
    options.stddev = kImageNetDeviation;
    return options;
  }

  // The same order each time, each sample once.
  data::Loader held_out_loader(int64_t batch) const {
    auto options = sized(*held_out_, batch);
    options.shuffle = false;
    options.pad = false;
    options.workers = 0;
    return data::Loader(held_out_, options);
  }

  // Too many that are no good would else end the first epoch unsaved.
  void read_held_out() const {
    if (!held_out_ || config_.data.name != "folder") {
      return;
    }
    auto loader = held_out_loader(1);
    loader.start(0);
    while (loader.next()) {}
    train::agree_on_images({held_out_}, *context_.group);
  }

  at::Tensor enlarge(const at::Tensor& low) {
    train::AutocastGuard autocast(context_.device, config_.trainer.precision);
    return pair_.generator().forward(low.to(context_.device)).to(at::kFloat);
  }

  EsrganConfig config_;
  train::Context context_;
  std::shared_ptr<data::Dataset> training_;
  std::shared_ptr<data::Dataset> held_out_;
  EsrganPair pair_;
  data::Loader loader_;
  at::Tensor last_low_;
  at::Tensor shown_;
};

std::map<std::string, double> EsrganRecipe::validate() {
  if (!held_out_) {
    return {};
  }
  torch::NoGradGuard no_grad;
  const train::EvalGuard eval(pair_.generator());
  const int64_t world = context_.world();
  auto loader = held_out_loader(
      std::min(
          config_.data.batch_size, (held_out_->size() + world - 1) / world));
  std::array<double, 3> sums = {0, 0, 0};  // psnr, ssim, images
  loader.start(0);
  while (const auto batch = loader.next()) {
    const auto made = to_pixels(enlarge(batch->small));
    const auto wanted = to_pixels(batch->images.to(context_.device));
    sums[0] += train::psnr(made, wanted).sum().item<double>();
    sums[1] += train::ssim(made, wanted).sum().item<double>();
    sums[2] += static_cast<double>(batch->size);
  }
  context_.group->all_reduce(
      sums.data(),
      sums.size(),
      collective::DataType::kFloat64,
      collective::ReduceOp::kSum);
  return {{"val_psnr", sums[0] / sums[2]}, {"val_ssim", sums[1] / sums[2]}};
}

// Always the same held-out images where there are some, so that pictures of
// different steps compare; else of the last batch.
std::vector<train::Picture> EsrganRecipe::draw() {
  torch::NoGradGuard no_grad;
  const train::EvalGuard eval(pair_.generator());
  if (held_out_ && !shown_.defined()) {
    const int64_t shard =
        (held_out_->size() + context_.world() - 1) / context_.world();
    auto loader = held_out_loader(std::min(kShown, shard));
    loader.start(0);
    if (const auto batch = loader.next()) {  // none: fewer images than ranks
      shown_ = batch->small.clone();
    }
  }
  const auto all = shown_.defined() ? shown_ : last_low_;
  const auto low = all.slice(0, 0, std::min(kShown, all.size(0))).contiguous();
  const std::vector<int64_t> size = {
      models::kUpscale * low.size(2), models::kUpscale * low.size(3)};
  const auto sheet = at::stack(
                         {to_pixels(at::upsample_nearest2d(low, size)),
                          to_pixels(at::upsample_bicubic2d(low, size, false)),
                          to_pixels(enlarge(low)).to(at::kCPU)},
                         1)
                         .flatten(0, 1);
  return {{"sheet", train::grid(sheet * 2 - 1, 3)}};
}

}  // namespace

double decay(int64_t epoch, int64_t decay_epoch, int64_t epochs) {
  if (epoch <= decay_epoch || epochs <= decay_epoch) {
    return 1;
  }
  return std::max(
      0.,
      1 - static_cast<double>(epoch - decay_epoch) /
              static_cast<double>(epochs - decay_epoch));
}

EsrganConfig::EsrganConfig() {
  trainer.max_epochs = 2;
  trainer.checkpoint_every = 5000;
  data.name = "folder";
  data.batch_size = 1;
  data.workers = 8;
  optim.lr = 2e-4;
}

void EsrganConfig::Model::bind(config::Binder& b) {
  b.field(
      "residual_blocks",
      residual_blocks,
      "residual-in-residual dense blocks of the generator",
      config::between(1, 1024));
  b.field(
      "filters", filters, "width of the generator", config::between(1, 65536));
  b.field(
      "vgg",
      vgg,
      "VGG19's weights, safetensors with torchvision's names; none: no content "
      "term");
}

void EsrganConfig::bind(config::Binder& b) {
  b.group("trainer", trainer, "the loop");
  b.group("data", data, "what is learned");
  b.group("optim", optim, "the optimiser of both networks");
  b.group("model", model, "the networks");
  b.field("hr_height", hr_height, "of the large images", config::at_least(16));
  b.field("hr_width", hr_width, "of the large images", config::at_least(16));
  b.field(
      "warmup_batches",
      warmup_batches,
      "first steps, that learn from pixels alone",
      config::at_least(0));
  b.field(
      "decay_epoch",
      decay_epoch,
      "epoch from which the learning rate falls evenly to the end",
      config::at_least(0));
  b.field(
      "lambda_adv",
      losses.lambda_adv,
      "weight of the adversarial term",
      config::at_least(0));
  b.field(
      "lambda_pixel",
      losses.lambda_pixel,
      "weight of the pixels' term after the warm-up",
      config::at_least(0));
  b.field(
      "sample_interval",
      sample_interval,
      "steps between sample sheets; 0: none",
      config::at_least(0));
  b.field(
      "validation_samples",
      validation_samples,
      "held-out images for val_psnr and val_ssim; 0: none",
      config::at_least(0));
  b.field("image", image, "file or folder for the verb 'upscale'");
  b.field(
      "tile",
      tile,
      "side of the tiles of 'upscale' in pixels of the input, 32 and more; 0: "
      "whole images",
      config::at_least(0));
  b.field("out", out, "run directory; default: runs/<id>");
  b.field("checkpoint", checkpoint, "file for the verbs 'test', 'upscale'");
}

Entry esrgan_entry() {
  Entry entry;
  entry.name = "esrgan";
  entry.summary = "images made four times larger, by a GAN";
  entry.verbs = {"upscale"};
  entry.add_groups = [](config::Groups& groups) {
    groups.add(
        "experiment",
        "small",
        "model: {residual_blocks: 2, filters: 32}\n"
        "hr_height: 64\nhr_width: 64\n"
        "warmup_batches: 200\nsample_interval: 100\n"
        "data: {batch_size: 8}\n");
  };
  entry.prepare = [](const config::Node& node, int world_size) {
    const auto check = [](const EsrganConfig& config) {
      for (const int64_t side : {config.hr_height, config.hr_width}) {
        if (side % models::kUpscale != 0) {
          throw std::invalid_argument(
              fmt::format(
                  "esrgan: hr_height={} hr_width={}; accepted: multiples of 4 "
                  "from 16",
                  config.hr_height,
                  config.hr_width));
        }
      }
      if (config.tile != 0 && config.tile < kLeastTile) {
        throw std::invalid_argument(
            fmt::format(
                "esrgan: tile={}; accepted: 0 (whole images), {} and more",
                config.tile,
                kLeastTile));
      }
      if (config.data.image_size != train::DataConfig().image_size) {
        throw std::invalid_argument(
            fmt::format(
                "esrgan: data.image_size={} has no use; hr_height={} and "
                "hr_width={} say how large the images are",
                config.data.image_size,
                config.hr_height,
                config.hr_width));
      }
      refuse_extras(config.trainer, config.data, "esrgan");
    };
    auto prepared =
        prepare_recipe<EsrganConfig, EsrganRecipe>(node, world_size, check);
    if (prepared) {
      const auto config = config::read<EsrganConfig>(node);
      UpscaleJob job{
          config->image, config->checkpoint, config->out, config->tile};
      prepared->verbs["upscale"] = [job](const train::Context& context) {
        return upscale_images(job, context);
      };
    }
    return prepared;
  };
  entry.describe = [] { return config::describe<EsrganConfig>(); };
  return entry;
}

}  // namespace lockstep::recipes
