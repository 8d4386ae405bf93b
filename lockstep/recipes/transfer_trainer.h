#pragma once

// A step of domain adaptation: a batch of the source with labels and one of the
// target without go through the network together; the loss is cross-entropy on
// the source plus a weighted distance between the features of both. Model,
// gradients and optimiser without data: what tests compare. On a GPU the step
// is one CUDA graph where it can be. One thread.

#include <string>
#include <vector>

#include "lockstep/models/transfer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/ahead.h"
#include "lockstep/train/graphed_step.h"
#include "lockstep/train/optimizer.h"
#include "lockstep/train/recipe.h"

namespace lockstep::recipes {

struct TransferTrainerOptions {
  models::TransferOptions model;
  std::string loss = "coral";  // or mmd
  double weight = 10;          // of the distance
  // CORAL between the batches of all ranks together, not of each alone.
  bool global = false;
  double backbone_rate = .1;  // its share of the learning rate
};

class TransferTrainer {
 public:
  TransferTrainer(
      const TransferTrainerOptions& options,
      const train::OptimConfig& optim,
      const train::Context& context);
  TransferTrainer(const TransferTrainer&) = delete;
  TransferTrainer& operator=(const TransferTrainer&) = delete;

  struct Micro {
    at::Tensor source;  // [n, c, h, w], normalised floats
    at::Tensor labels;  // [n], of the source
    at::Tensor target;  // [m, c, h, w]
    double weight = 1;  // of the global batch
  };
  static std::vector<std::string> metrics() {
    return {"loss", "class_loss", "transfer_loss", "accuracy"};
  }
  train::StepOutput step(const std::vector<Micro>& micros, double lr);

  // With the running statistics, without chance and gradients.
  at::Tensor logits(const at::Tensor& images);
  // Running statistics become rank 0's, which its checkpoints hold: a run that
  // is resumed between two validations goes on as if it had not stopped.
  void share_statistics();

  models::TransferNet& model() { return *model_; }
  parallel::Strategy& strategy() { return *strategy_; }
  train::Optimizer& optimizer() { return *optimizer_; }

 private:
  struct Features {
    at::Tensor source;
    at::Tensor target;
  };
  Features features(const Micro& micro);
  at::Tensor distance(const Features& features);
  collective::Timing update(const std::vector<Micro>& micros, double lr);
  // The same micros where a captured step reads them.
  std::vector<Micro> in_place(const std::vector<Micro>& micros);
  void sum_over_ranks(const at::Tensor& tensor);

  TransferTrainerOptions options_;
  train::Context context_;
  std::shared_ptr<models::TransferNet> model_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::unique_ptr<train::Optimizer> optimizer_;
  train::GraphedStep step_;
  train::Ahead inputs_;          // that a graph reads
  collective::Timing exchange_;  // of sums within a step
};

}  // namespace lockstep::recipes
