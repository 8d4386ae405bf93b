#include "lockstep/recipes/setup.h"

#include <fmt/format.h>

#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/data/sampler.h"
#include "lockstep/parallel/ddp.h"
#include "lockstep/parallel/fsdp.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {

std::shared_ptr<data::Dataset> open_split(
    const train::DataConfig& config,
    const train::TrainerConfig& trainer,
    bool training,
    data::TolerantOptions tolerant) {
  data::DatasetOptions options;
  options.name = config.name;
  options.root = config.root;
  options.train = training;
  options.limit = config.limit;
  options.length = config.length;
  options.image_size = static_cast<int>(config.image_size);
  options.channels = static_cast<int>(config.channels);
  options.num_classes = static_cast<int>(config.classes);
  options.seed = static_cast<uint64_t>(trainer.seed);
  std::shared_ptr<data::Dataset> dataset = data::open_dataset(options);
  if (config.name != "folder") {
    return dataset;  // in memory already, and whole
  }
  tolerant.share = config.max_skipped;
  return data::tolerate(std::move(dataset), tolerant);
}

std::shared_ptr<data::Dataset> open_held_out(
    const train::DataConfig& config,
    const train::TrainerConfig& trainer,
    const data::TolerantOptions& tolerant) {
  namespace fs = std::filesystem;
  const fs::path root(config.root);
  std::error_code absent;
  if (config.name == "folder" && !fs::is_directory(root / "test", absent) &&
      !fs::is_directory(root / "val", absent)) {
    log_info(
        fmt::format(
            "{} has neither test/ nor val/: training without validation",
            config.root));
    return nullptr;
  }
  return open_split(config, trainer, false, tolerant);
}

void check_batch(
    const train::DataConfig& config,
    const train::Context& context,
    const data::Dataset& dataset) {
  const int64_t world = context.world();
  const int64_t shard = (dataset.size() + world - 1) / world;
  if (config.batch_size > shard) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "data.batch_size={} is larger than a rank's shard of {} samples "
            "({} samples on {} ranks)",
            config.batch_size,
            shard,
            dataset.size(),
            world));
  }
}

data::LoaderOptions loader_options(
    const train::DataConfig& config,
    const train::Context& context,
    const data::Dataset& dataset) {
  check_batch(config, context, dataset);
  data::LoaderOptions options;
  options.batch_size = config.batch_size;
  options.image_size = static_cast<int>(config.image_size);
  options.workers = static_cast<int>(config.workers);
  options.seed = static_cast<uint64_t>(context.trainer.seed);
  options.rank = context.rank();
  options.world = context.world();
  options.pinned = context.device.is_cuda();
  return options;
}

double cut_for_rehearsal(
    data::LoaderOptions& options,
    const data::Dataset& dataset,
    const train::Context& context) {
  constexpr int64_t kRehearsed = 8;  // batches
  const int64_t all = data::batches_per_epoch(
      dataset.size(), options.world, options.batch_size, options.drop_last);
  if (context.trainer.rehearse == 0 || all <= kRehearsed) {
    return 1;
  }
  options.epoch_batches = kRehearsed;
  return static_cast<double>(kRehearsed) / static_cast<double>(all);
}

void load_pretrained(
    const std::string& path,
    const parallel::NamedTensors& tensors,
    const train::Context& context,
    const train::WeightsOptions& options) {
  if (context.rank() != 0) {
    return;
  }
  const auto report = train::load_weights(path, tensors, options);
  log_info(report.to_string());
  if (!report.missing.empty()) {
    log_warning(
        fmt::format(
            "{} tensors are not in {} and stay as initialised",
            report.missing.size(),
            path));
  }
}

void place(torch::nn::Module& module, const train::Context& context) {
  torch::NoGradGuard no_grad;
  module.to(context.device);
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

Trained make_trained(
    const torch::nn::Module& module,
    const train::OptimConfig& optim,
    const train::Context& context,
    const TrainedOptions& options) {
  const auto parameters = train::named_parameters(module);
  std::vector<char> decay;
  std::vector<double> rates;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) {
      decay.push_back(!options.decays || options.decays(tensor));
      rates.push_back(options.rate ? options.rate(name) : 1);
    }
  }
  Trained result;
  if (context.trainer.strategy == "fsdp") {
    parallel::FsdpOptions fsdp;
    if (context.trainer.precision == "bf16") {
      fsdp.compute = at::kBFloat16;
    }
    fsdp.direct_gradients = options.direct_gradients;
    result.strategy = std::make_unique<parallel::Fsdp>(
        parameters, options.blocks, *context.group, fsdp);
  } else {
    result.strategy =
        std::make_unique<parallel::Ddp>(parameters, *context.group);
  }
  auto& strategy = *result.strategy;
  result.optimizer = std::make_unique<train::Optimizer>(
      optim, strategy.names(), strategy.parameters(), decay, rates);
  if (strategy.shards()) {
    result.optimizer->sum_norms_by(
        [&strategy](double value) { return strategy.total(value); });
  }
  return result;
}

void update(const Trained& trained, double lr, const at::Tensor& rate) {
  const auto& gradients = trained.strategy->gradients();
  if (rate.is_cuda() && trained.optimizer->runs_async()) {
    trained.optimizer->step_async(gradients, rate);
  } else {
    trained.optimizer->step(gradients, lr);
  }
}

void refuse_extras(
    const train::TrainerConfig& trainer,
    const train::DataConfig& data,
    const std::string& recipe) {
  if (data.batch_size == 0) {
    throw std::invalid_argument(
        recipe + ": data.batch_size takes a number; auto is for vit");
  }
  if (trainer.recompute != "none") {
    throw std::invalid_argument(
        recipe + ": trainer.recompute is for vit; leave it at none");
  }
  if (trainer.strategy == "fsdp") {
    throw std::invalid_argument(
        fmt::format(
            "trainer.strategy=fsdp: recipe '{}' has no blocks to shard; "
            "accepted: auto, single, ddp",
            recipe));
  }
}

void hold_until_last(parallel::Strategy& strategy, size_t index, size_t count) {
  if (index + 1 < count) {
    strategy.hold();
  } else {
    strategy.release();
  }
}

parallel::Placements with_optimizer(
    parallel::Placements placements,
    const std::string& prefix) {
  parallel::Placements all = placements;
  for (const auto& [name, placement] : placements) {
    for (const char* moment : {".exp_avg", ".exp_avg_sq", ".momentum_buffer"}) {
      all.emplace(prefix + name + moment, placement);
    }
  }
  return all;
}

std::map<std::string, std::string> common_facts(
    const train::DataConfig& data,
    const train::OptimConfig& optim) {
  return {
      {"data", data.name},
      {"batch_size", std::to_string(data.batch_size)},
      {"image_size", std::to_string(data.image_size)},
      {"lr", fmt::format("{}", optim.lr)}};
}

parallel::NamedTensors prefixed(
    const parallel::NamedTensors& tensors,
    const std::string& prefix) {
  parallel::NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.emplace_back(prefix + name, tensor);
  }
  return result;
}

parallel::NamedTensors join(
    parallel::NamedTensors a,
    const parallel::NamedTensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace lockstep::recipes
