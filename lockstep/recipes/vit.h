#pragma once

// Vision transformer for classification: cross-entropy on the training split,
// accuracy and loss on the official test split, over all ranks.

#include <optional>

#include "lockstep/data/augment.h"
#include "lockstep/models/vit.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/recipes/vit_step.h"
#include "lockstep/train/optimizer.h"
#include "lockstep/train/recompute.h"

namespace lockstep::recipes {

struct VitConfig {
  struct Model {
    std::string name = "vit_base_patch32_224";
    int64_t patch = 0;  // 0: as the name says
    int64_t dim = 0;
    int64_t depth = 0;
    int64_t heads = 0;
    std::string weights;
    void bind(config::Binder& b);
  };
  train::TrainerConfig trainer;
  train::DataConfig data;
  train::OptimConfig optim;
  Model model;
  bool flip = true;
  int64_t crop_padding = 0;
  double mixup = 0;
  double label_smoothing = 0;
  double ema = 0;
  std::string out;
  std::string checkpoint;
  VitConfig();
  void bind(config::Binder& b);
  models::VitOptions options(int64_t channels, int64_t classes) const;
};

// Model, gradients and optimiser without data: what tests compare.
class VitTrainer {
 public:
  VitTrainer(const VitTrainer&) = delete;  // the model calls back
  VitTrainer& operator=(const VitTrainer&) = delete;
  VitTrainer(
      const models::VitOptions& options,
      const train::OptimConfig& optim,
      double label_smoothing,
      const train::Context& context);

  struct Micro {
    at::Tensor images;  // floats, or uint8 where augment() is set
    at::Tensor labels;
    double weight = 1;
    uint64_t key = 0;  // of what is random in it
  };
  // What is done with a batch on the device before it is learned.
  void augment(const data::AugmentOptions& options);
  at::Tensor prepared(const at::Tensor& images) const;  // without chance
  // Metrics: loss, accuracy (of an image's larger part under mixup).
  train::StepOutput step(const std::vector<Micro>& micros, double lr);
  // Forward and backward of `count` samples, without reduction or update.
  void trial(int64_t count);
  void set_recompute(train::Recompute mode);
  at::Tensor logits(const at::Tensor& images);

  models::Vit& model() { return *model_; }
  parallel::Strategy& strategy() { return *strategy_; }
  train::Optimizer& optimizer() { return *optimizer_; }

 private:
  VitStep::Batch fast_batch(const Micro& micro) const;
  at::Tensor run_block(models::VitBlock& block, const at::Tensor& tokens) const;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) const;
  at::Tensor loss(const at::Tensor& logits, const data::Augmented& batch) const;
  train::Context context_;
  double label_smoothing_;
  train::Recompute recompute_ = train::Recompute::kNone;
  std::optional<data::AugmentOptions> augment_;
  std::shared_ptr<models::Vit> model_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::unique_ptr<VitStep> fast_;  // where kernels fit
};

Entry vit_entry();

}  // namespace lockstep::recipes
