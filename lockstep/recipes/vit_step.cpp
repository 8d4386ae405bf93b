#include "lockstep/recipes/vit_step.h"

#include <torch/types.h>

#include "lockstep/kernels/gemm.h"
#include "lockstep/recipes/setup.h"

namespace lockstep::recipes {
namespace {

// Room for an input, filled anew before each step.
at::Tensor room_for(const at::Tensor& source, c10::Device device) {
  return source.defined()
             ? at::empty_like(source, source.options().device(device))
             : at::Tensor();
}

void refill(const at::Tensor& room, const at::Tensor& source) {
  if (source.defined()) {
    room.copy_(source, /*non_blocking=*/true);
  }
}

// A trial of a batch size need not find the fastest products.
struct TrialProducts {
  TrialProducts() { kernels::cuda::time_candidates(false); }
  ~TrialProducts() { kernels::cuda::time_candidates(true); }
  TrialProducts(const TrialProducts&) = delete;
  TrialProducts& operator=(const TrialProducts&) = delete;
};

}  // namespace

VitStep::VitStep(
    models::Vit& model,
    parallel::Strategy& strategy,
    train::Optimizer& optimizer,
    const train::Context& context,
    double label_smoothing)
    : model_(model),
      strategy_(strategy),
      optimizer_(optimizer),
      context_(context),
      label_smoothing_(label_smoothing),
      reader_(
          {.size = model.options().image_size,
           .patch = model.options().patch,
           .lead = 1}),
      graph_(
          context.device,
          context.group->name() != "nccl" && context.world() == 1 &&
              !strategy.shards() && optimizer.runs_async()) {
  model_.use_kernels(models::Keep::kAll, strategy.shards());
  const auto on = at::TensorOptions().device(context.device);
  lr_ = at::zeros({1}, on.dtype(at::kFloat));
  metrics_ = at::zeros({2}, on.dtype(at::kDouble));
}

bool VitStep::fits(
    const models::VitOptions& model,
    const train::Context& context) {
  return context.device.is_cuda() && context.trainer.precision == "bf16" &&
         models::Vit::kernels_fit(model) && model.channels <= 3;
}

VitStep::Input& VitStep::input_for(size_t index, const Batch& batch) {
  auto& input = inputs_[{index, batch.labels.size(0)}];
  if (!input.batch.labels.defined()) {
    const auto device = context_.device;
    input.batch.images = room_for(batch.images, device);
    input.batch.labels = room_for(batch.labels, device);
    input.batch.moves = room_for(batch.moves, device);
    input.batch.partners = room_for(batch.partners, device);
    input.share = at::ones({1}, lr_.options());
  }
  refill(input.batch.images, batch.images);
  refill(input.batch.labels, batch.labels);
  refill(input.batch.moves, batch.moves);
  refill(input.batch.partners, batch.partners);
  if (batch.partners.defined()) {
    input.share.fill_(batch.share);
  }
  input.batch.weight = batch.weight;
  return input;
}

void VitStep::forward_and_backward(
    const Input& input,
    size_t index,
    size_t count) {
  const auto& batch = input.batch;
  const bool bytes = batch.images.scalar_type() == at::kByte;
  const auto mixed = [&](const at::Tensor& samples) {
    return at::lerp(
        samples.index_select(0, batch.partners),
        samples,
        input.share.to(samples.scalar_type()));
  };
  at::Tensor logits;
  if (bytes) {
    auto rows = reader_.read(batch.images, batch.moves);
    if (batch.partners.defined()) {
      rows = mixed(rows.view({batch.labels.size(0), -1})).view(rows.sizes());
    }
    logits = model_.forward_patches(rows);
  } else {
    logits = model_.forward(
        batch.partners.defined() ? mixed(batch.images) : batch.images);
  }
  const auto own =
      models::fused_cross_entropy(logits, batch.labels, label_smoothing_);
  auto loss = own.loss;
  auto hits = own.hits;
  if (batch.partners.defined()) {
    const auto other = models::fused_cross_entropy(
        logits, batch.labels.index_select(0, batch.partners), label_smoothing_);
    loss = at::lerp(other.loss, own.loss, input.share.squeeze());
    hits = at::where(input.share < .5, other.hits, own.hits);
  }
  hold_until_last(strategy_, index, count);
  (loss * batch.weight).backward();
  const double share = batch.weight * context_.world();
  metrics_.add_(at::stack({loss.detach(), hits.mean()}).to(at::kDouble), share);
}

train::StepOutput VitStep::run(const std::vector<Batch>& batches, double lr) {
  std::vector<Input*> inputs;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < batches.size(); ++i) {
    inputs.push_back(&input_for(i, batches[i]));
    sizes.push_back(batches[i].labels.size(0));
  }
  lr_.fill_(lr);
  collective::Timing timing;
  graph_.run(sizes, [&] {
    metrics_.zero_();
    strategy_.begin();
    for (size_t i = 0; i < inputs.size(); ++i) {
      forward_and_backward(*inputs[i], i, inputs.size());
    }
    timing = strategy_.finish();
    if (optimizer_.runs_async()) {
      optimizer_.step_async(strategy_.gradients(), lr_);
    } else {
      optimizer_.step(strategy_.gradients(), lr);
    }
  });
  return {metrics_, timing};
}

void VitStep::read_pixels(
    int64_t padding,
    const std::array<float, 3>& mean,
    const std::array<float, 3>& stddev) {
  reader_.options().padding = padding;
  reader_.options().mean = mean;
  reader_.options().stddev = stddev;
}

void VitStep::trial(int64_t count) {
  const auto& shape = model_.options();
  const auto on = at::TensorOptions().device(context_.device);
  const auto rows = at::zeros(
      {count * model_.length(), shape.patch * shape.patch * shape.channels},
      on.dtype(context_.device.is_cuda() ? at::kBFloat16 : at::kFloat));
  const auto labels = at::zeros({count}, on.dtype(at::kLong));
  const TrialProducts untimed;
  strategy_.rehearse([&] {
    models::fused_cross_entropy(model_.forward_patches(rows), labels, 0)
        .loss.backward();
  });
}

at::Tensor VitStep::logits(const at::Tensor& images) {
  torch::NoGradGuard no_grad;
  return images.scalar_type() == at::kByte
             ? model_.forward_patches(reader_.read(images, at::Tensor()))
             : model_.forward(images);
}

}  // namespace lockstep::recipes
