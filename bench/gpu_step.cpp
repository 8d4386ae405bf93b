// Times training steps of ViT-B/32 on a GPU without data and loop around them,
// and writes a trace of a few:
//   gpu_step BATCH STEPS [keep=all|cheap|least] [trace=FILE]
// Prints one line of JSON.

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/collective/factory.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/recipes/vit_step.h"
#include "lockstep/train/allocator.h"
#include "lockstep/train/step_graph.h"

namespace {

using lockstep::models::Keep;
namespace recipes = lockstep::recipes;
namespace train = lockstep::train;

double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Keep keep_named(const std::string& name) {
  return name == "least"   ? Keep::kLeast
         : name == "cheap" ? Keep::kCheap
                           : Keep::kAll;
}

void trace(const std::string& path, const std::function<void()>& body) {
  namespace impl = torch::profiler::impl;
  namespace profiler = torch::autograd::profiler;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  body();
  torch::cuda::synchronize();
  profiler::disableProfiler()->save(path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "gpu_step BATCH STEPS [keep=...] [trace=FILE]\n");
    return 2;
  }
  const int64_t batch = std::atoll(argv[1]);
  const int64_t steps = std::atoll(argv[2]);
  std::string keep = "all";
  std::string trace_file;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("keep=")) {
      keep = word.substr(5);
    } else if (word.starts_with("trace=")) {
      trace_file = word.substr(6);
    }
  }
  const auto group = lockstep::collective::make_single();
  train::Context context;
  context.group = group.get();
  context.device = c10::Device(at::kCUDA, 0);
  context.trainer.precision = "bf16";
  train::join_freed_memory(context.device);
  train::use_own_stream(context.device);
  train::OptimConfig optim;
  optim.name = "adamw";
  optim.lr = 5e-4;
  optim.weight_decay = .05;
  at::manual_seed(0);
  lockstep::models::Vit model(
      lockstep::models::vit_options("vit_base_patch32_224"));
  recipes::place(model, context);
  auto trained = recipes::make_trained(model, optim, context);
  recipes::VitStep step(
      model, *trained.strategy, *trained.optimizer, context, 0);
  model.use_kernels(keep_named(keep));
  const auto on = at::TensorOptions().device(context.device);
  recipes::VitStep::Batch input;
  input.images = at::randint(256, {batch, 32, 32, 3}, on.dtype(at::kByte))
                     .permute({0, 3, 1, 2});
  input.labels = at::randint(10, {batch}, on.dtype(at::kLong));
  at::Tensor metrics;
  const auto once = [&] { metrics = step.run({input}, 5e-4).metrics; };
  double first = 0;
  for (int i = 0; i < 6; ++i) {
    once();
    if (i == 0) {
      first = metrics[0].item<double>();
    }
  }
  torch::cuda::synchronize();
  const double begun = now();
  for (int64_t i = 0; i < steps; ++i) {
    once();
  }
  torch::cuda::synchronize();
  const double seconds = (now() - begun) / static_cast<double>(steps);
  if (!trace_file.empty()) {
    trace(trace_file, [&] {
      for (int i = 0; i < 3; ++i) {
        once();
      }
    });
  }
  fmt::print(
      "{{\"batch\": {}, \"keep\": \"{}\", \"step_ms\": {:.3f}, "
      "\"samples_per_second\": {:.1f}, \"graph\": {}, \"first_loss\": {:.4f}, "
      "\"loss\": {:.4f}}}\n",
      batch,
      keep,
      seconds * 1e3,
      static_cast<double>(batch) / seconds,
      step.in_graph(),
      first,
      metrics[0].item<double>());
  return 0;
}
