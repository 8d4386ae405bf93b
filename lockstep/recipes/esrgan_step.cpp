#include "lockstep/recipes/esrgan_step.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "lockstep/models/relativistic.h"
#include "lockstep/train/error.h"
#include "lockstep/train/precision.h"
#include "lockstep/train/weights.h"

namespace lockstep::recipes {
namespace {

using train::AutocastGuard;
using train::widened;

constexpr int64_t kMetrics = 5;

at::Tensor row(
    const at::Tensor& loss_g,
    const at::Tensor& loss_d,
    const at::Tensor& content,
    const at::Tensor& adversarial,
    const at::Tensor& pixel) {
  return at::stack({loss_g, loss_d, content, adversarial, pixel})
      .to(at::kDouble);
}

}  // namespace

EsrganPair::EsrganPair(
    const models::EsrganOptions& options,
    const EsrganLosses& losses,
    const train::OptimConfig& optim,
    const train::Context& context)
    : context_(context),
      losses_(losses),
      step_(
          context.device,
          context.world() == 1 && context.group->name() != "nccl" &&
              optim.name != "sgd",
          kMetrics),
      inputs_(context.device) {
  at::manual_seed(static_cast<uint64_t>(context.trainer.seed));
  generator_ = std::make_shared<models::EsrganGenerator>(options);
  discriminator_ =
      std::make_shared<models::EsrganDiscriminator>(options.channels);
  place(*generator_, context);
  place(*discriminator_, context);
  for_generator_ = make_trained(*generator_, optim, context);
  for_discriminator_ = make_trained(*discriminator_, optim, context);
}

void EsrganPair::load_vgg(const std::string& path) {
  vgg_ = std::make_shared<models::Vgg19Features>();
  const auto report = train::load_weights(path, train::named_parameters(*vgg_));
  if (!report.missing.empty()) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "{}: no VGG19: '{}' is not in it; expected torchvision's names, "
            "features.0.weight to features.34.bias",
            path,
            report.missing.front()));
  }
  vgg_->eval();
  place(*vgg_, context_);
}

train::StepOutput
EsrganPair::step(const std::vector<Micro>& micros, double lr, bool warming) {
  // The warm-up's graph gives its memory back before the other is made.
  if (warming_ != warming) {
    step_.forget();
    warming_ = warming;
  }
  std::vector<Micro> inputs;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < micros.size(); ++i) {
    sizes.push_back(micros[i].low.size(0));
    inputs.push_back(
        {inputs_.put(2 * i, micros[i].low),
         inputs_.put(2 * i + 1, micros[i].high),
         micros[i].weight});
  }
  return step_.run(sizes, lr, [&] { return update(inputs, lr, warming); });
}

collective::Timing
EsrganPair::update(const std::vector<Micro>& micros, double lr, bool warming) {
  for_generator_.strategy->begin();
  if (!warming) {
    for_discriminator_.strategy->begin();
  }
  for (size_t i = 0; i < micros.size(); ++i) {
    const auto& micro = micros[i];
    hold_until_last(*for_generator_.strategy, i, micros.size());
    if (!warming) {
      hold_until_last(*for_discriminator_.strategy, i, micros.size());
    }
    const auto values = warming ? warm(micro) : learn(micro);
    // Of this rank's samples: the last batch of an epoch may be smaller.
    step_.metrics().add_(values, micro.weight * context_.world());
  }
  auto timing = for_generator_.strategy->finish();
  recipes::update(for_generator_, lr, step_.rate());
  if (!warming) {
    const auto more = for_discriminator_.strategy->finish();
    recipes::update(for_discriminator_, lr, step_.rate());
    timing.wait += more.wait;
    timing.busy += more.busy;
  }
  return timing;
}

at::Tensor EsrganPair::warm(const Micro& micro) {
  at::Tensor made;
  {
    AutocastGuard autocast(context_.device, context_.trainer.precision);
    made = generator_->forward(micro.low);
  }
  const auto pixel = at::l1_loss(widened(made), micro.high);
  (pixel * micro.weight).backward();
  const auto value = pixel.detach();
  const auto none = at::zeros_like(value);
  return row(value, none, none, none, value);
}

at::Tensor EsrganPair::learn(const Micro& micro) {
  at::Tensor made;
  at::Tensor leaf;  // cut from the generator, so that D's step ends there
  at::Tensor on_real;
  at::Tensor on_fake;
  at::Tensor content;
  {
    AutocastGuard autocast(context_.device, context_.trainer.precision);
    made = generator_->forward(micro.low);
    leaf = made.detach().requires_grad_(true);
    on_real = widened(discriminator_->forward(micro.high));
    on_fake = widened(discriminator_->forward(leaf));
    if (vgg_) {
      at::Tensor wanted;
      {
        at::NoGradGuard no_grad;
        wanted = widened(vgg_->forward(micro.high));
      }
      content = at::l1_loss(widened(vgg_->forward(leaf)), wanted);
    }
  }
  const auto pixel = at::l1_loss(widened(leaf), micro.high);
  const auto loss = models::relativistic_loss(on_real, on_fake);
  auto direct = pixel * losses_.lambda_pixel;
  if (content.defined()) {
    direct = direct + content;
  }
  // To the generated image only: D's own gradients are another loss's.
  const auto to_image = torch::autograd::grad(
      {direct, on_fake},
      {leaf},
      {at::ones_like(direct), loss.generator_fake * losses_.lambda_adv},
      /*retain_graph=*/true);
  made.backward(to_image[0] * micro.weight);
  torch::autograd::backward(
      {on_real, on_fake},
      {loss.critic_real * micro.weight, loss.critic_fake * micro.weight},
      /*retain_graph=*/false,
      /*create_graph=*/false,
      discriminator_->parameters());
  const auto none = at::zeros_like(loss.generator);
  return row(
      direct.detach() + loss.generator * losses_.lambda_adv,
      loss.discriminator,
      content.defined() ? content.detach() : none,
      loss.generator,
      pixel.detach());
}

parallel::NamedTensors EsrganPair::tensors() const {
  return join(
      train::named_state(*generator_, "generator."),
      train::named_state(*discriminator_, "discriminator."));
}

parallel::NamedTensors EsrganPair::extra() const {
  return join(
      prefixed(for_generator_.optimizer->state(), "optim.generator."),
      prefixed(for_discriminator_.optimizer->state(), "optim.discriminator."));
}

}  // namespace lockstep::recipes
