#pragma once

// Vision transformer for classification: cross-entropy on the training split,
// accuracy and loss on the official test split, over all ranks.

#include "lockstep/models/vit.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/train/optimizer.h"

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
  double label_smoothing = 0;
  std::string out;
  std::string checkpoint;
  VitConfig();
  void bind(config::Binder& b);
  models::VitOptions options(int64_t channels, int64_t classes) const;
};

// Model, gradients and optimiser without data: what tests compare.
class VitTrainer {
 public:
  VitTrainer(
      const models::VitOptions& options,
      const train::OptimConfig& optim,
      double label_smoothing,
      const train::Context& context);

  struct Micro {
    at::Tensor images;
    at::Tensor labels;
    double weight = 1;
  };
  // Metrics: loss, accuracy.
  train::StepOutput step(const std::vector<Micro>& micros, double lr);
  at::Tensor logits(const at::Tensor& images);

  models::Vit& model() { return *model_; }
  parallel::Ddp& ddp() { return *ddp_; }
  train::Optimizer& optimizer() { return *optimizer_; }

 private:
  train::Context context_;
  double label_smoothing_;
  std::shared_ptr<models::Vit> model_;
  std::unique_ptr<parallel::Ddp> ddp_;
  std::unique_ptr<train::Optimizer> optimizer_;
};

Entry vit_entry();

}  // namespace lockstep::recipes
