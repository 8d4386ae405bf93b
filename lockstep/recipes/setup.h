#pragma once

// What recipes share when they are set up: data sets and loaders from the
// config, placing a model on its device, its gradients and optimiser, joining
// lists of tensors.

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/data/loader.h"
#include "lockstep/data/tolerant.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/train/optimizer.h"
#include "lockstep/train/recipe.h"
#include "lockstep/train/weights.h"

namespace lockstep::recipes {

// The official training or test split; throws with what to do. Of a folder,
// data.max_skipped of the images may be no good; `tolerant` has the sizes.
std::shared_ptr<data::Dataset> open_split(
    const train::DataConfig& config,
    const train::TrainerConfig& trainer,
    bool training,
    data::TolerantOptions tolerant = {});

// The split that is not trained on; null, with a line in the log, where an
// image folder has only one: then there is no validation.
std::shared_ptr<data::Dataset> open_held_out(
    const train::DataConfig& config,
    const train::TrainerConfig& trainer,
    const data::TolerantOptions& tolerant = {});

// Throws TrainError when the batch is larger than a rank's shard.
void check_batch(
    const train::DataConfig& config,
    const train::Context& context,
    const data::Dataset& dataset);
// Sharded for this rank; checks the batch.
data::LoaderOptions loader_options(
    const train::DataConfig& config,
    const train::Context& context,
    const data::Dataset& dataset);

// In a probe (trainer.rehearse) a validation sees a few batches only. Cuts
// `options` to them, and gives the share of all batches that they are.
double cut_for_rehearsal(
    data::LoaderOptions& options,
    const data::Dataset& dataset,
    const train::Context& context);

// Fills `tensors` from a safetensors file and tells what was loaded, skipped
// and missing. Rank 0 alone: its weights become everybody's.
void load_pretrained(
    const std::string& path,
    const parallel::NamedTensors& tensors,
    const train::Context& context,
    const train::WeightsOptions& options = {});

// To the device; images and convolution weights in channels_last.
void place(torch::nn::Module& module, const train::Context& context);

// The gradients of a module, and who updates it.
struct Trained {
  std::unique_ptr<parallel::Strategy> strategy;
  std::unique_ptr<train::Optimizer> optimizer;
};
struct TrainedOptions {
  // Which parameters weight decay shrinks; absent: all.
  std::function<bool(const at::Tensor&)> decays{};
  // A parameter's share of the learning rate, by its name; absent: 1.
  std::function<double(const std::string&)> rate{};
  // The parameters of each block, in order: what trainer.strategy=fsdp shards.
  std::vector<std::vector<at::Tensor>> blocks{};
  // The blocks' functions add to .grad themselves (parallel/fsdp.h).
  bool direct_gradients = false;
};
// One update: on a GPU without waiting, `rate` there holding the learning rate.
void update(const Trained& trained, double lr, const at::Tensor& rate);
Trained make_trained(
    const torch::nn::Module& module,
    const train::OptimConfig& optim,
    const train::Context& context,
    const TrainedOptions& options = {});

// For recipes whose model has no blocks: fsdp, recomputing and a batch that
// finds itself are refused. Throws std::invalid_argument.
void refuse_extras(
    const train::TrainerConfig& trainer,
    const train::DataConfig& data,
    const std::string& recipe);

// Holds the reduction back until the last of `count` backward passes.
void hold_until_last(parallel::Strategy& strategy, size_t index, size_t count);

// Where the optimiser's moments lie: where their parameters do. `prefix` stands
// before the optimiser's names.
parallel::Placements with_optimizer(
    parallel::Placements placements,
    const std::string& prefix);

// What every recipe tells of its run.
std::map<std::string, std::string> common_facts(
    const train::DataConfig& data,
    const train::OptimConfig& optim);

parallel::NamedTensors prefixed(
    const parallel::NamedTensors& tensors,
    const std::string& prefix);
parallel::NamedTensors join(
    parallel::NamedTensors a,
    const parallel::NamedTensors& b);

// Reads and checks a recipe's config; `check` throws std::invalid_argument.
template <class Config, class Recipe, class Check>
Result<Prepared>
prepare_recipe(const config::Node& node, int world_size, Check check) {
  LOCKSTEP_ASSIGN(auto config, config::read<Config>(node));
  LOCKSTEP_TRY(
      train::check_and_complete(config.trainer, config.data, world_size));
  try {
    check(config);
  } catch (const std::invalid_argument& failure) {
    return Error(ErrorCode::kInvalidInput, failure.what());
  }
  Prepared prepared;
  prepared.config = config::print_yaml(config::describe(config));
  prepared.trainer = config.trainer;
  prepared.out = config.out;
  prepared.checkpoint = config.checkpoint;
  prepared.build = [config](const train::Context& context) {
    return std::make_unique<Recipe>(config, context);
  };
  return prepared;
}

}  // namespace lockstep::recipes
