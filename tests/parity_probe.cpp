// Runs the steps of a recipe on tensors that a test gives and writes back what
// came of them, so that tests/test_parity.py can compare with PyTorch:
//
//   parity_probe IN.safetensors OUT.safetensors
//
// IN: "init.<name>" for every parameter and buffer; for dcgan "real" and
// "noise", for vit "images" and "labels", for esrgan "low" and "high", each
// [steps, batch, ...]; the options as metadata. OUT: "forward.*" of the first
// batch with the initial weights, "grad.<name>" after step 1, "metrics" [steps,
// k], "final.<name>" (of vit with several steps), and "counts": parameters and
// elements reduced.
//
// vit also runs as one of several ranks (RANK, WORLD_SIZE and so on), each on
// its share of the batch, with "strategy" ddp or fsdp: rank 0 writes the mean
// of the metrics, "final.<name>" and "bytes": the most of the model's state
// that a rank held, all parameters, those of a block, those of the root.
//
// deepcoral takes "source", "labels" and "target", and ranks as vit does; with
// "narrow" its gradients are written in fp32.

#include <c10/core/DefaultDtype.h>

#include <cstdio>
#include <string>

#include "lockstep/collective/factory.h"
#include "lockstep/os/process.h"
#include "lockstep/parallel/fsdp.h"
#include "lockstep/recipes/dcgan.h"
#include "lockstep/recipes/esrgan_step.h"
#include "lockstep/recipes/transfer_trainer.h"
#include "lockstep/recipes/vit.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/train/group.h"

namespace {

using lockstep::parallel::NamedTensors;
namespace record = lockstep::record;

struct Given {
  record::SafetensorsFile file;
  std::string text(const std::string& key) const {
    return file.metadata().at(key);
  }
  int64_t whole(const std::string& key) const { return std::stoll(text(key)); }
  double real(const std::string& key) const { return std::stod(text(key)); }
  at::Tensor tensor(const std::string& name) const {
    const auto* view = file.find(name);
    if (view == nullptr) {
      throw std::runtime_error("no tensor '" + name + "'");
    }
    const auto type = view->dtype == "I64"   ? at::kLong
                      : view->dtype == "F64" ? at::kDouble
                                             : at::kFloat;
    return at::from_blob(
               const_cast<std::byte*>(view->bytes.data()), view->shape, type)
        .clone();
  }
};

void fill(const NamedTensors& tensors, const Given& given) {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    tensor.copy_(given.tensor("init." + name));
  }
}

class Answer {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    // A copy: the probe goes on to change what it was given.
    list_.emplace_back(
        name, tensor.detach().clone(at::MemoryFormat::Contiguous));
  }
  void add(const std::string& prefix, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      add(prefix + name, tensor);
    }
  }
  void write(const std::string& path) const {
    std::vector<record::TensorView> views;
    for (const auto& [name, tensor] : list_) {
      const bool whole = tensor.scalar_type() == at::kLong;
      const bool twice = tensor.scalar_type() == at::kDouble;
      views.push_back(
          {name,
           whole   ? "I64"
           : twice ? "F64"
                   : "F32",
           tensor.sizes().vec(),
           {static_cast<const std::byte*>(tensor.data_ptr()),
            static_cast<size_t>(tensor.nbytes())}});
    }
    const auto written =
        record::write_safetensors(lockstep::os::real_files(), path, views, {});
    if (!written) {
      throw std::runtime_error(written.error().to_string());
    }
  }

 private:
  NamedTensors list_;
};

int64_t num_elements(const torch::nn::Module& module) {
  int64_t total = 0;
  for (const auto& parameter : module.parameters()) {
    total += parameter.numel();
  }
  return total;
}

void add_gradients(
    Answer& answer,
    const std::string& prefix,
    const torch::nn::Module& module,
    const lockstep::parallel::Strategy& strategy) {
  const auto names = lockstep::train::named_parameters(module, prefix);
  for (size_t i = 0; i < names.size(); ++i) {
    answer.add("grad." + names[i].first, strategy.gradients()[i]);
  }
}

void run_dcgan(
    const Given& given,
    const lockstep::train::OptimConfig& optim,
    const lockstep::train::Context& context,
    Answer& answer) {
  lockstep::recipes::DcganPair pair(
      {.image_size = given.whole("image_size"),
       .channels = given.whole("channels"),
       .nz = given.whole("nz"),
       .ngf = given.whole("ngf"),
       .ndf = given.whole("ndf")},
      optim,
      context);
  const auto real = given.tensor("real");
  const auto noise = given.tensor("noise");
  fill(pair.tensors(), given);
  {
    at::NoGradGuard no_grad;
    answer.add("forward.generator", pair.generator().forward(noise[0]));
    answer.add("forward.discriminator", pair.discriminator().forward(real[0]));
  }
  fill(pair.tensors(), given);  // the forward moved the running statistics
  std::vector<at::Tensor> metrics;
  for (int64_t step = 0; step < real.size(0); ++step) {
    metrics.push_back(
        pair.step({{real[step], noise[step], 1}}, optim.lr).metrics);
    if (step == 0) {
      add_gradients(
          answer, "generator.", pair.generator(), pair.generator_ddp());
      add_gradients(
          answer,
          "discriminator.",
          pair.discriminator(),
          pair.discriminator_ddp());
    }
  }
  answer.add("metrics", at::stack(metrics));
  answer.add("final.", pair.tensors());
  answer.add(
      "counts",
      at::tensor(
          {num_elements(pair.generator()),
           num_elements(pair.discriminator()),
           pair.generator_ddp().reduced_elements(),
           pair.discriminator_ddp().reduced_elements()},
          at::kLong));
}

void run_esrgan(
    const Given& given,
    const lockstep::train::OptimConfig& optim,
    const lockstep::train::Context& context,
    Answer& answer) {
  lockstep::recipes::EsrganPair pair(
      {.channels = given.whole("channels"),
       .residual_blocks = given.whole("residual_blocks"),
       .filters = given.whole("filters")},
      {.lambda_adv = given.real("lambda_adv"),
       .lambda_pixel = given.real("lambda_pixel")},
      optim,
      context);
  const auto low = given.tensor("low");
  const auto high = given.tensor("high");
  if (!given.text("vgg").empty()) {
    pair.load_vgg(given.text("vgg"));
  }
  fill(pair.tensors(), given);
  {
    at::NoGradGuard no_grad;
    answer.add("forward.generator", pair.generator().forward(low[0]));
    answer.add("forward.discriminator", pair.discriminator().forward(high[0]));
    if (pair.vgg() != nullptr) {
      answer.add("forward.vgg", pair.vgg()->forward(high[0]));
    }
  }
  fill(pair.tensors(), given);  // the forward moved the running statistics
  std::vector<at::Tensor> metrics;
  for (int64_t step = 0; step < low.size(0); ++step) {
    const bool warming = step < given.whole("warming");
    metrics.push_back(
        pair.step({{low[step], high[step], 1}}, optim.lr, warming).metrics);
    if (step == 0) {
      add_gradients(
          answer, "generator.", pair.generator(), pair.generator_ddp());
      if (!warming) {
        add_gradients(
            answer,
            "discriminator.",
            pair.discriminator(),
            pair.discriminator_ddp());
      }
    }
  }
  answer.add("metrics", at::stack(metrics));
  answer.add("final.", pair.tensors());
  answer.add(
      "counts",
      at::tensor(
          {num_elements(pair.generator()),
           num_elements(pair.discriminator()),
           pair.generator_ddp().reduced_elements(),
           pair.discriminator_ddp().reduced_elements()},
          at::kLong));
}

void run_vit(
    const Given& given,
    const lockstep::train::OptimConfig& optim,
    const lockstep::train::Context& context,
    Answer& answer) {
  lockstep::models::VitOptions options;
  options.image_size = given.whole("image_size");
  options.patch = given.whole("patch");
  options.dim = given.whole("dim");
  options.depth = given.whole("depth");
  options.heads = given.whole("heads");
  lockstep::recipes::VitTrainer trainer(
      options, optim, given.real("label_smoothing"), context);
  const auto images = given.tensor("images");
  const auto labels = given.tensor("labels");
  const auto state = lockstep::train::named_state(trainer.model());
  auto& strategy = trainer.strategy();
  strategy.edit_whole([&] { fill(state, given); });
  {
    const lockstep::parallel::OpenGuard open(strategy);
    at::NoGradGuard no_grad;
    answer.add("forward.logits", trainer.logits(images[0]));
  }
  std::vector<at::Tensor> metrics;
  const int64_t share = images.size(1) / context.world();
  for (int64_t step = 0; step < images.size(0); ++step) {
    const auto ours = [&](const at::Tensor& all) {
      return all[step].narrow(0, context.rank() * share, share);
    };
    metrics.push_back(
        trainer
            .step(
                {{ours(images), ours(labels), 1. / context.world()}}, optim.lr)
            .metrics);
    if (step == 0 && !strategy.shards()) {
      add_gradients(answer, "", trainer.model(), strategy);
    }
  }
  const auto means = at::stack(metrics) / context.world();
  context.group->all_reduce(
      means.data_ptr(),
      static_cast<size_t>(means.numel()),
      lockstep::collective::DataType::kFloat64,
      lockstep::collective::ReduceOp::kSum);
  answer.add("metrics", means);
  if (metrics.size() > 1) {  // a large model is compared after one step
    strategy.edit_whole([&] { answer.add("final.", state); });
  }
  if (const auto* fsdp =
          dynamic_cast<const lockstep::parallel::Fsdp*>(&strategy)) {
    int64_t held = fsdp->peak_bytes();
    for (const auto& [name, tensor] : trainer.optimizer().state()) {
      held += static_cast<int64_t>(tensor.nbytes());
    }
    context.group->all_reduce(
        &held,
        1,
        lockstep::collective::DataType::kInt64,
        lockstep::collective::ReduceOp::kMax);
    answer.add(
        "bytes",
        at::tensor(
            {held,
             num_elements(trainer.model()),
             fsdp->largest_block_elements(),
             fsdp->root_elements()},
            at::kLong));
  }
  answer.add(
      "counts",
      at::tensor(
          {num_elements(trainer.model()), strategy.reduced_elements()},
          at::kLong));
}

void run_deepcoral(
    const Given& given,
    const lockstep::train::OptimConfig& optim,
    const lockstep::train::Context& context,
    Answer& answer) {
  lockstep::recipes::TransferTrainerOptions options;
  options.model.backbone.name = given.text("backbone");
  options.model.backbone.image_size = given.whole("image_size");
  options.model.backbone.dropout = 0;
  options.model.bottleneck = given.whole("bottleneck");
  options.model.classes = given.whole("classes");
  options.loss = given.text("loss");
  options.weight = given.real("transfer_weight");
  options.global = given.text("covariance") == "global";
  options.backbone_rate = given.real("backbone_rate");
  lockstep::recipes::TransferTrainer trainer(options, optim, context);
  const auto type = c10::get_default_dtype_as_scalartype();
  const auto source = given.tensor("source").to(type);
  const auto labels = given.tensor("labels");
  const auto target = given.tensor("target").to(type);
  const auto state = lockstep::train::named_state(trainer.model());
  fill(state, given);
  answer.add("forward.logits", trainer.logits(source[0]));
  std::vector<at::Tensor> metrics;
  const int64_t share = source.size(1) / context.world();
  for (int64_t step = 0; step < source.size(0); ++step) {
    const auto ours = [&](const at::Tensor& all) {
      return all[step]
          .narrow(0, context.rank() * share, share)
          .contiguous(
              all.dim() == 5 ? at::MemoryFormat::ChannelsLast
                             : at::MemoryFormat::Contiguous);
    };
    metrics.push_back(
        trainer
            .step(
                {{ours(source),
                  ours(labels),
                  ours(target),
                  1. / context.world()}},
                lockstep::train::learning_rate(optim, step + 1, 0))
            .metrics);
    if (step == 0) {
      const auto names = lockstep::train::named_parameters(trainer.model());
      for (size_t i = 0; i < names.size(); ++i) {
        const auto& gradient = trainer.strategy().gradients()[i];
        answer.add(
            "grad." + names[i].first,
            given.whole("narrow") != 0 ? gradient.to(at::kFloat) : gradient);
      }
    }
  }
  const auto means = at::stack(metrics) / context.world();
  context.group->all_reduce(
      means.data_ptr(),
      static_cast<size_t>(means.numel()),
      lockstep::collective::DataType::kFloat64,
      lockstep::collective::ReduceOp::kSum);
  answer.add("metrics", means);
  if (metrics.size() > 1) {
    trainer.share_statistics();
    answer.add("final.", state);
  }
}

void run(const std::string& in, const std::string& out) {
  auto opened = record::SafetensorsFile::open(in);
  if (!opened) {
    throw std::runtime_error(opened.error().to_string());
  }
  const Given given{std::move(*opened)};
  auto environment =
      lockstep::train::read_rank_environment(lockstep::os::environment());
  if (!environment) {
    throw std::runtime_error(environment.error().to_string());
  }
  lockstep::train::Group group(
      *environment, "host", std::chrono::seconds(60), at::kCPU);
  lockstep::train::Context context;
  context.group = &group.communicator();
  context.trainer.precision = given.text("precision");
  context.trainer.strategy = given.text("strategy");
  if (context.trainer.precision == "fp64") {
    // Not a precision of the trainer: the same code with other weights.
    context.trainer.precision = "fp32";
    c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  }
  lockstep::train::OptimConfig optim;
  optim.name = given.text("optim");
  optim.lr = given.real("lr");
  optim.beta1 = given.real("beta1");
  optim.weight_decay = given.real("weight_decay");
  optim.clip = given.real("clip");
  Answer answer;
  if (given.text("recipe") == "dcgan") {
    run_dcgan(given, optim, context, answer);
  } else if (given.text("recipe") == "esrgan") {
    run_esrgan(given, optim, context, answer);
  } else if (given.text("recipe") == "deepcoral") {
    optim.schedule = "inverse";
    optim.lr_gamma = given.real("lr_gamma");
    run_deepcoral(given, optim, context, answer);
  } else {
    run_vit(given, optim, context, answer);
  }
  if (context.rank() == 0) {
    answer.write(out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(
        stderr, "usage: parity_probe IN.safetensors OUT.safetensors\n");
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "parity_probe: %s\n", failure.what());
    return 1;
  }
  return 0;
}
