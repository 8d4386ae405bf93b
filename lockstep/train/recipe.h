#pragma once

// What a recipe gives to the loop: its data, a step, its state, and where it
// has them a validation and pictures. The loop owns order, time, metrics,
// checkpoints and limits, so a recipe is little more than its arithmetic. All
// calls come from one thread, in the same order on all ranks.

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/ddp.h"
#include "lockstep/record/confusion.h"
#include "lockstep/record/png.h"
#include "lockstep/train/agree_on_images.h"
#include "lockstep/train/config.h"

namespace lockstep::train {

// What every recipe is built with.
struct Context {
  collective::Communicator* group = nullptr;
  c10::Device device = at::kCPU;
  TrainerConfig trainer;
  int sharers = 1;       // ranks that share this one's memory
  bool training = true;  // false: only tested
  int rank() const { return group->rank(); }
  int world() const { return group->size(); }
};

struct StepInput {
  std::vector<data::Batch> batches;  // trainer.accumulate of them, or fewer
  int64_t step = 0;                  // from 1
  int64_t epoch = 0;                 // from 0
  int64_t total_steps = 0;           // 0: unknown
  int64_t samples = 0;               // in the batches, on this rank
  int64_t all_samples = 0;           // on all ranks
  // A batch's share of the global batch: its loss is weighted by it, and the
  // sum over batches and ranks is the mean over all samples.
  double weight(const data::Batch& batch) const {
    return static_cast<double>(batch.size) / static_cast<double>(all_samples);
  }
};

struct StepOutput {
  at::Tensor metrics;         // [k], this rank's, in the order of metrics()
  collective::Timing timing;  // blocked in collectives
};

// How good a model is on the held-out split, over all ranks.
struct Evaluation {
  std::map<std::string, double> values;  // empty: nothing to evaluate on
  std::optional<record::Confusion> confusion{};  // of classifiers
};

struct Picture {
  std::string name;  // "fake"
  record::Image image;
};

class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual std::string name() const = 0;
  virtual data::Loader& loader() = 0;
  // All that is read, so that ranks agree on what is no good in it.
  virtual Datasets datasets() const = 0;
  virtual std::vector<std::string> metrics() const = 0;
  virtual StepOutput step(const StepInput& input) = 0;

  // Shown in the init event and the logbook: batch size, model, optimiser.
  virtual std::map<std::string, std::string> facts() const { return {}; }

  // What a step (from 1) is part of; told in the events where it changes, so
  // that whoever predicts from iterations measures each kind of them.
  virtual std::string phase(int64_t /*step*/) const { return "train"; }

  // Over all ranks; empty when there is nothing to validate on.
  virtual std::map<std::string, double> validate() { return {}; }
  // The same for the verb 'test', and what else there is to say.
  virtual Evaluation evaluate() { return {validate(), {}}; }
  struct Best {
    std::string metric;  // of validate()
    bool smaller = true;
  };
  virtual Best best() const = 0;

  // Parameters and buffers under plain names; optimiser state.
  virtual parallel::NamedTensors tensors() = 0;
  virtual parallel::NamedTensors extra() = 0;
  // Of those that are this rank's part of a whole.
  virtual parallel::Placements placements() { return {}; }
  // What the labels mean: a checkpoint of other classes is refused.
  virtual std::vector<std::string> classes() const { return {}; }
  // What no tensor's shape shows of the model ("heads=3"): a checkpoint of
  // another one is refused.
  virtual std::string model() const { return ""; }

  // Steps between pictures (0: none), and the pictures (rank 0 only).
  virtual int64_t draw_every() const { return 0; }
  virtual std::vector<Picture> draw() { return {}; }
};

// Named parameters and buffers of a module, each name behind `prefix`.
parallel::NamedTensors named_parameters(
    const torch::nn::Module& module,
    const std::string& prefix = "");
parallel::NamedTensors named_buffers(
    const torch::nn::Module& module,
    const std::string& prefix = "");
parallel::NamedTensors named_state(
    const torch::nn::Module& module,
    const std::string& prefix = "");

// [n, c, h, w] in [-1, 1] as a grid of `per_row` a row.
record::Image grid(const at::Tensor& images, int per_row = 8);

// Evaluation mode for a scope; train mode when left.
class EvalGuard {
 public:
  explicit EvalGuard(torch::nn::Module& module) : module_(module) {
    module_.eval();
  }
  ~EvalGuard() { module_.train(); }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  torch::nn::Module& module_;
};

// Reseeds the default generators: equal arguments, equal numbers, so that a
// step draws the same noise after a resume, and each rank its own.
void seed_step(int64_t seed, int rank, int64_t step);

}  // namespace lockstep::train
