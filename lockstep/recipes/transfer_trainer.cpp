#include "lockstep/recipes/transfer_trainer.h"

#include <torch/types.h>

#include "lockstep/recipes/setup.h"
#include "lockstep/train/precision.h"

namespace lockstep::recipes {

using train::AutocastGuard;

TransferTrainer::TransferTrainer(
    const TransferTrainerOptions& options,
    const train::OptimConfig& optim,
    const train::Context& context)
    : options_(options),
      context_(context),
      // Nothing of a captured step may go through the host or another stream,
      // and a learning rate that each group has its own of is the host's.
      step_(
          context.device,
          context.world() == 1 && context.group->name() != "nccl" &&
              (optim.name == "sgd" || options.backbone_rate == 1),
          static_cast<int64_t>(metrics().size())),
      inputs_(context.device) {
  at::manual_seed(static_cast<uint64_t>(context.trainer.seed));
  model_ = std::make_shared<models::TransferNet>(options.model);
  place(*model_, context);
  TrainedOptions trained;
  trained.rate = [&options](const std::string& name) {
    return name.starts_with("backbone.") ? options.backbone_rate : 1;
  };
  auto made = make_trained(*model_, optim, context_, trained);
  strategy_ = std::move(made.strategy);
  optimizer_ = std::move(made.optimizer);
}

train::StepOutput TransferTrainer::step(
    const std::vector<Micro>& micros,
    double lr) {
  const auto inputs = in_place(micros);
  std::vector<int64_t> sizes;
  for (const auto& micro : micros) {
    sizes.push_back(micro.labels.size(0));
  }
  return step_.run(sizes, lr, [&] { return update(inputs, lr); });
}

std::vector<TransferTrainer::Micro> TransferTrainer::in_place(
    const std::vector<Micro>& micros) {
  std::vector<Micro> inputs;
  for (size_t i = 0; i < micros.size(); ++i) {
    const auto slot = 3 * static_cast<int64_t>(i);
    Micro room;
    room.source = inputs_.bring(slot, micros[i].source);
    room.labels = inputs_.bring(slot + 1, micros[i].labels);
    room.target = inputs_.bring(slot + 2, micros[i].target);
    room.weight = micros[i].weight;
    inputs.push_back(room);
  }
  return inputs;
}

TransferTrainer::Features TransferTrainer::features(const Micro& micro) {
  const AutocastGuard autocast(context_.device, context_.trainer.precision);
  const int64_t n = micro.source.size(0);
  if (micro.target.size(0) != n) {  // statistics are of equal halves
    return {
        train::widened(model_->features(micro.source)),
        train::widened(model_->features(micro.target))};
  }
  // Twice the batch for the price of one launch each.
  const auto both = train::widened(
      model_->features(at::cat({micro.source, micro.target}), /*domains=*/2));
  return {both.narrow(0, 0, n), both.narrow(0, n, n)};
}

at::Tensor TransferTrainer::distance(const Features& features) {
  if (options_.loss == "mmd") {
    return models::mmd(features.source, features.target);
  }
  if (!options_.global || context_.world() == 1) {
    return models::coral(features.source, features.target);
  }
  return models::coral(
      features.source, features.target, [this](const at::Tensor& tensor) {
        sum_over_ranks(tensor);
      });
}

void TransferTrainer::sum_over_ranks(const at::Tensor& tensor) {
  auto& group = *context_.group;
  const bool through_host = !tensor.is_cpu() && !group.takes_device_memory();
  const auto held = through_host ? tensor.cpu() : tensor;
  const auto timing = group.all_reduce(
      held.data_ptr(),
      static_cast<size_t>(held.numel()),
      parallel::data_type(held),
      collective::ReduceOp::kSum);
  exchange_.wait += timing.wait;
  exchange_.busy += timing.busy;
  if (through_host) {
    tensor.copy_(held);
  }
}

collective::Timing TransferTrainer::update(
    const std::vector<Micro>& micros,
    double lr) {
  exchange_ = {};
  strategy_->begin();
  for (size_t i = 0; i < micros.size(); ++i) {
    const auto& micro = micros[i];
    // Of this rank's samples.
    const double share = micro.weight * context_.world();
    const auto both = features(micro);
    at::Tensor logits;
    {
      const AutocastGuard autocast(context_.device, context_.trainer.precision);
      logits = train::widened(model_->classify(both.source));
    }
    const auto class_loss =
        at::cross_entropy_loss(logits, micro.labels, {}, at::Reduction::Mean);
    const auto apart = distance(both);
    // A distance over all ranks is one number whose gradients add up; one of
    // each rank is averaged as its cross-entropy is.
    const double weight =
        options_.weight * (options_.global ? share : micro.weight);
    hold_until_last(*strategy_, i, micros.size());
    (class_loss * micro.weight + apart * weight).backward();
    const auto hits =
        (logits.detach().argmax(1) == micro.labels).to(logits.scalar_type());
    step_.metrics().add_(
        at::stack({(class_loss + apart * options_.weight).detach(),
                   class_loss.detach(),
                   apart.detach(),
                   hits.mean()})
            .to(at::kDouble),
        share);
  }
  auto timing = strategy_->finish();
  if (context_.device.is_cuda() && optimizer_->runs_async()) {
    optimizer_->step_async(strategy_->gradients(), step_.rate());
  } else {
    optimizer_->step(strategy_->gradients(), lr);
  }
  timing.wait += exchange_.wait;
  timing.busy += exchange_.busy;
  return timing;
}

at::Tensor TransferTrainer::logits(const at::Tensor& images) {
  torch::NoGradGuard no_grad;
  const bool before = model_->is_training();
  model_->eval();
  const AutocastGuard autocast(context_.device, context_.trainer.precision);
  auto result = train::widened(model_->classify(model_->features(images)));
  model_->train(before);
  return result;
}

void TransferTrainer::share_statistics() {
  parallel::broadcast(train::named_buffers(*model_), *context_.group);
}

}  // namespace lockstep::recipes
