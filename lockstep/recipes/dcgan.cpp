#include "lockstep/recipes/dcgan.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <optional>

#include "lockstep/train/error.h"
#include "lockstep/train/precision.h"

namespace lockstep::recipes {
namespace {

using train::AutocastGuard;

constexpr int64_t kShown = 64;  // images in a grid
constexpr int64_t kMetrics = 5;

// Binary cross-entropy of logits against all-ones or all-zeros.
at::Tensor loss_real(const at::Tensor& logits) {
  return at::softplus(-logits).mean();
}
at::Tensor loss_fake(const at::Tensor& logits) {
  return at::softplus(logits).mean();
}

// Real and fake images go through the discriminator together, each normalised
// by its own statistics: one large batch is faster than two small ones.
constexpr int64_t kDomains = 2;
at::Tensor side_by_side(const at::Tensor& real, const at::Tensor& fake) {
  const auto like =
      real.to(fake.scalar_type()).contiguous(fake.suggest_memory_format());
  return at::cat({like, fake});
}

at::Tensor fixed_noise(int64_t count, int64_t nz, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({count, nz, 1, 1}, generator);
}

// The rows of all ranks, which have equally many.
at::Tensor of_all_ranks(
    const at::Tensor& rows,
    collective::Communicator& group) {
  const auto all = at::empty({group.size(), rows.size(0), rows.size(1)});
  all[group.rank()].copy_(rows);
  group.all_gather(
      all.data_ptr(),
      static_cast<size_t>(rows.numel()),
      collective::DataType::kFloat32);
  return all.flatten(0, 1);
}

class DcganRecipe : public train::Recipe {
 public:
  DcganRecipe(const DcganConfig& config, const train::Context& context)
      : config_(config),
        context_(context),
        training_(open_split(config.data, config.trainer, true)),
        held_out_(open_held_out(config.data, config.trainer)),
        pair_(
            {.image_size = config.data.image_size,
             .channels = training_->channels(),
             .nz = config.model.nz,
             .ngf = config.model.ngf,
             .ndf = config.model.ndf},
            config.optim,
            context) {
    if (context.training) {
      loader_.emplace(training_, training_options());
    }
  }

  std::string name() const override { return "dcgan"; }
  data::Loader& loader() override { return *loader_; }
  train::Datasets datasets() const override { return {training_, held_out_}; }
  std::vector<std::string> metrics() const override {
    return {"loss_d", "loss_g", "d_x", "d_g_z1", "d_g_z2"};
  }

  std::map<std::string, std::string> facts() const override {
    auto facts = common_facts(config_.data, config_.optim);
    facts["model"] = fmt::format(
        "nz={} ngf={} ndf={}",
        config_.model.nz,
        config_.model.ngf,
        config_.model.ndf);
    return facts;
  }

  train::StepOutput step(const train::StepInput& input) override {
    std::vector<DcganPair::Micro> micros;
    for (const auto& batch : input.batches) {
      micros.push_back(
          {batch.images,
           at::randn(
               {batch.size, config_.model.nz, 1, 1},
               at::TensorOptions().pinned_memory(context_.device.is_cuda())),
           input.weight(batch)});
    }
    last_real_ = micros.front().real;
    return pair_.step(
        micros,
        train::learning_rate(config_.optim, input.step, input.total_steps));
  }

  std::map<std::string, double> validate() override;
  Best best() const override { return {"val_swd", true}; }
  parallel::NamedTensors tensors() override { return pair_.tensors(); }
  parallel::NamedTensors extra() override { return pair_.extra(); }
  int64_t draw_every() const override { return config_.sample_every; }

  std::vector<train::Picture> draw() override {
    torch::NoGradGuard no_grad;
    std::vector<train::Picture> pictures;
    if (last_real_.defined()) {
      const int64_t count = std::min(kShown, last_real_.size(0));
      auto shown = last_real_.slice(0, 0, count);
      if (shown.scalar_type() == at::kByte) {
        shown = shown.to(at::kFloat) / 127.5 - 1;
      }
      pictures.push_back({"real", train::grid(shown)});
    }
    // Last, so that the newest file is the one people want to see.
    pictures.push_back({"fake", train::grid(generate(kShown, 0, 0, kShown))});
    return pictures;
  }

 private:
  data::LoaderOptions training_options() const {
    auto options = loader_options(config_.data, context_, *training_);
    options.pixels = context_.device.is_cuda() &&
                     config_.trainer.precision == "bf16" &&
                     training_->image_size().height > 0;
    return options;
  }

  // Always the same noise, so that pictures of different steps compare: `count`
  // of `all` images, from `first` on.
  at::Tensor
  generate(int64_t all, int64_t stream, int64_t first, int64_t count) {
    const train::EvalGuard eval(pair_.generator());
    const auto noise = fixed_noise(
                           all,
                           config_.model.nz,
                           static_cast<uint64_t>(config_.trainer.seed) +
                               1000003 * static_cast<uint64_t>(stream + 1))
                           .narrow(0, first, count);
    AutocastGuard autocast(context_.device, config_.trainer.precision);
    return pair_.generator()
        .forward(noise.to(context_.device))
        .to(at::kCPU, at::kFloat);
  }

  DcganConfig config_;
  train::Context context_;
  std::shared_ptr<data::Dataset> training_;
  std::shared_ptr<data::Dataset> held_out_;
  DcganPair pair_;
  std::optional<data::Loader> loader_;  // none when only tested
  at::Tensor last_real_;
};

std::map<std::string, double> DcganRecipe::validate() {
  if (!held_out_) {
    return {};
  }
  // Equally many on each rank, compared all together: fewer images are further
  // apart.
  const int64_t count =
      std::min(config_.validation_samples, held_out_->size()) /
      context_.world();
  const int64_t all = count * context_.world();
  if (all < 2) {
    return {};
  }
  torch::NoGradGuard no_grad;
  parallel::broadcast(pair_.tensors(), *context_.group);  // rank 0's statistics
  auto config = config_.data;
  config.batch_size = count;  // few images may be held out
  auto options = loader_options(config, context_, *held_out_);
  options.shuffle = false;
  options.workers = 0;
  data::Loader loader(held_out_, options);
  loader.start(0);
  const auto real = loader.next()->images;
  const auto fake = generate(all, 1, context_.rank() * count, count);
  const double distance = sliced_wasserstein(
      of_all_ranks(projected(real.contiguous()), *context_.group),
      of_all_ranks(projected(fake.contiguous()), *context_.group));
  return {{"val_swd", distance}};
}

}  // namespace

DcganConfig::DcganConfig() {
  trainer.max_epochs = 25;
  data.batch_size = 32;
  data.image_size = 64;
  optim.beta1 = .5;
  optim.lr = 2e-4;
}

void DcganConfig::Model::bind(config::Binder& b) {
  b.field("nz", nz, "length of the noise", config::between(1, 65536));
  b.field("ngf", ngf, "width of the generator", config::between(1, 65536));
  b.field("ndf", ndf, "width of the discriminator", config::between(1, 65536));
}

void DcganConfig::bind(config::Binder& b) {
  b.group("trainer", trainer, "the loop");
  b.group("data", data, "what is learned");
  b.group("optim", optim, "the optimiser of both networks");
  b.group("model", model, "the networks");
  b.field(
      "sample_every",
      sample_every,
      "steps between picture grids; 0: none",
      config::at_least(0));
  b.field(
      "validation_samples",
      validation_samples,
      "held-out images that val_swd compares with",
      config::at_least(0));
  b.field("out", out, "run directory; default: runs/<id>");
  b.field("checkpoint", checkpoint, "file for the verb 'test'");
}

DcganPair::DcganPair(
    const models::DcganOptions& options,
    const train::OptimConfig& optim,
    const train::Context& context)
    : context_(context),
      step_(
          context.device,
          context.world() == 1 && context.group->name() != "nccl" &&
              optim.name != "sgd",
          kMetrics),
      inputs_(context.device),
      reader_({.size = options.image_size, .patch = options.image_size}) {
  at::manual_seed(static_cast<uint64_t>(context.trainer.seed));
  generator_ = std::make_shared<models::DcganGenerator>(options);
  discriminator_ = std::make_shared<models::DcganDiscriminator>(options);
  place(*generator_, context);
  place(*discriminator_, context);
  for_generator_ = make_trained(*generator_, optim, context_);
  for_discriminator_ = make_trained(*discriminator_, optim, context_);
}

train::StepOutput DcganPair::step(const std::vector<Micro>& micros, double lr) {
  const auto inputs = in_place(micros);
  std::vector<int64_t> sizes;
  for (const auto& micro : micros) {
    sizes.push_back(micro.real.size(0));
  }
  return step_.run(sizes, lr, [&] { return update(inputs, lr); });
}

// Copies to where a captured step reads.
std::vector<DcganPair::Micro> DcganPair::in_place(
    const std::vector<Micro>& micros) {
  std::vector<Micro> inputs;
  for (size_t i = 0; i < micros.size(); ++i) {
    const Micro& from = micros[i];
    inputs.push_back(
        {inputs_.put(2 * i, from.real),
         inputs_.put(2 * i + 1, from.noise),
         from.weight});
  }
  return inputs;
}

collective::Timing DcganPair::update(
    const std::vector<Micro>& micros,
    double lr) {
  const auto& precision = context_.trainer.precision;
  // Of this rank's samples: the last batch of an epoch may be smaller.
  const auto share = [&](const Micro& micro) {
    return micro.weight * context_.world();
  };
  std::vector<at::Tensor> fakes;
  std::vector<std::array<at::Tensor, kMetrics>> values(micros.size());

  for_discriminator_.strategy->begin();
  for (size_t i = 0; i < micros.size(); ++i) {
    const auto& micro = micros[i];
    at::Tensor on_real;
    at::Tensor on_fake;
    {
      AutocastGuard autocast(context_.device, precision);
      fakes.push_back(generator_->forward(micro.noise));
      const bool bytes = micro.real.scalar_type() == at::kByte;
      const auto both = side_by_side(
          bytes ? reader_.read_images(micro.real) : micro.real,
          fakes[i].detach());
      const auto logits =
          train::widened(discriminator_->forward(both, kDomains))
              .chunk(kDomains);
      on_real = logits[0];
      on_fake = logits[1];
    }
    const auto loss = loss_real(on_real) + loss_fake(on_fake);
    hold_until_last(*for_discriminator_.strategy, i, micros.size());
    (loss * (micro.weight)).backward();
    values[i][0] = loss.detach();
    values[i][2] = at::sigmoid(on_real.detach()).mean();
    values[i][3] = at::sigmoid(on_fake.detach()).mean();
  }
  auto timing = for_discriminator_.strategy->finish();
  recipes::update(for_discriminator_, lr, step_.rate());

  // G's step needs gradients through D, not of D.
  for (auto& parameter : discriminator_->parameters()) {
    parameter.requires_grad_(false);
  }
  for_generator_.strategy->begin();
  for (size_t i = 0; i < micros.size(); ++i) {
    at::Tensor on_fake;
    {
      AutocastGuard autocast(context_.device, precision);
      on_fake = train::widened(discriminator_->forward(fakes[i]));
    }
    const auto loss = loss_real(on_fake);
    hold_until_last(*for_generator_.strategy, i, micros.size());
    (loss * micros[i].weight).backward();
    values[i][1] = loss.detach();
    values[i][4] = at::sigmoid(on_fake.detach()).mean();
    step_.metrics().add_(
        at::stack(at::TensorList(values[i])).to(at::kDouble), share(micros[i]));
  }
  for (auto& parameter : discriminator_->parameters()) {
    parameter.requires_grad_(true);
  }
  const auto more = for_generator_.strategy->finish();
  recipes::update(for_generator_, lr, step_.rate());
  timing.wait += more.wait;
  timing.busy += more.busy;
  return timing;
}

parallel::NamedTensors DcganPair::tensors() const {
  return join(
      train::named_state(*generator_, "generator."),
      train::named_state(*discriminator_, "discriminator."));
}

parallel::NamedTensors DcganPair::extra() const {
  return join(
      prefixed(for_generator_.optimizer->state(), "optim.generator."),
      prefixed(for_discriminator_.optimizer->state(), "optim.discriminator."));
}

at::Tensor projected(const at::Tensor& images) {
  constexpr int64_t kDirections = 64;
  const auto flat = images.flatten(1).to(at::kFloat);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  auto directions = at::randn({flat.size(1), kDirections}, generator);
  directions = directions / directions.norm(2, 0, true);
  return at::mm(flat, directions);
}

double sliced_wasserstein(const at::Tensor& a, const at::Tensor& b) {
  const auto sorted_a = std::get<0>(at::sort(a, 0));
  const auto sorted_b = std::get<0>(at::sort(b, 0));
  return (sorted_a - sorted_b).abs().mean().item<double>();
}

Entry dcgan_entry() {
  Entry entry;
  entry.name = "dcgan";
  entry.summary = "generative adversarial network on images";
  entry.add_groups = [](config::Groups& groups) {
    groups.add(
        "experiment",
        "small",
        "data: {name: fashion_mnist, image_size: 32, batch_size: 32}\n"
        "model: {ngf: 32, ndf: 32}\n"
        "trainer: {precision: bf16}\n");
  };
  entry.prepare = [](const config::Node& node, int world_size) {
    return prepare_recipe<DcganConfig, DcganRecipe>(
        node, world_size, [](const DcganConfig& config) {
          models::check_options({.image_size = config.data.image_size});
          refuse_extras(config.trainer, config.data, "dcgan");
        });
  };
  entry.describe = [] { return config::describe<DcganConfig>(); };
  return entry;
}

}  // namespace lockstep::recipes
