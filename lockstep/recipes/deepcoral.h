#pragma once

// Domain adaptation (Sun and Saenko, arXiv 1607.01719): a classifier learns
// from a source with labels and a target without, and is tested on the target.
// Both are sharded over the ranks.

#include "lockstep/recipes/domains.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/recipes/transfer_trainer.h"

namespace lockstep::recipes {

struct DeepcoralConfig {
  struct Model {
    std::string backbone = "resnet50";
    bool use_bottleneck = true;
    int64_t bottleneck = 256;
    double dropout = .5;
    double backbone_rate = .1;
    std::string weights;
    void bind(config::Binder& b);
  };
  train::TrainerConfig trainer;
  DomainsConfig data;
  train::OptimConfig optim;
  Model model;
  std::string transfer_loss = "coral";
  double transfer_loss_weight = 10;
  std::string covariance = "rank";
  bool epoch_based_training = true;
  int64_t n_iter_per_epoch = 20;
  bool scale_lr = true;
  std::string out;
  std::string checkpoint;
  DeepcoralConfig();
  void bind(config::Binder& b);
  TransferTrainerOptions options(int64_t channels, int64_t classes) const;
};

Entry deepcoral_entry();

}  // namespace lockstep::recipes
