#pragma once

// The keys that every recipe shares: trainer.*, data.* and optim.*. A recipe's
// own config holds these beside its model's.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/config/binder.h"

namespace lockstep::train {

struct TrainerConfig {
  int64_t max_epochs = 1;
  int64_t min_epochs = 0;
  int64_t max_steps = 0;   // 0: no limit
  double max_seconds = 0;  // 0: no limit
  int64_t early_stop = 0;  // validations without a better one; 0: never
  std::string strategy = "auto";
  std::string precision = "fp32";
  std::string device = "auto";
  int64_t devices = 0;    // ranks a node; 0: as started
  int64_t num_nodes = 0;  // 0: as started
  int64_t accumulate = 1;
  int64_t seed = 0;
  int64_t log_every = 10;
  int64_t trace_steps = 0;       // 0: no trace
  int64_t rehearse = 0;          // an epoch's end after so many steps; 0: none
  int64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch
  std::string checkpoint_dir;
  std::string checkpoint_format = "auto";
  std::string resume = "none";
  std::string collective = "auto";
  std::string recompute = "none";
  std::string balance = "none";
  Bytes memory_limit{};  // a rank's; 0: what the machine or GPU has free
  Duration timeout = std::chrono::minutes(5);
  void bind(config::Binder& b);
};

struct DataConfig {
  std::string name = "cifar10";
  std::string root;
  int64_t batch_size = 32;  // 0: auto, the largest that fits
  int64_t batch_cap = 0;    // of auto; 0: none
  int64_t global_batch_size = 0;
  int64_t workers = 1;
  int64_t image_size = 64;
  int64_t limit = 0;
  int64_t length = 1024;
  int64_t channels = 3;
  int64_t classes = 10;
  double max_skipped = .1;  // share of a folder's images that may be no good
  void bind(config::Binder& b);
};

struct OptimConfig {
  std::string name = "adam";
  double lr = 2e-4;
  double beta1 = .9;
  double beta2 = .999;
  double eps = 1e-8;
  double momentum = .9;
  double weight_decay = 0;
  double clip = 0;  // largest gradient norm; 0: none
  std::string schedule = "constant";
  int64_t warmup_steps = 0;
  double min_lr = 0;
  double lr_gamma = 3e-4;  // of the inverse schedule
  double lr_decay = .75;
  void bind(config::Binder& b);
};

// Beyond each key alone: combinations. `world_size` is the launcher's. Sets
// data.batch_size from data.global_batch_size.
Result<void>
check_and_complete(TrainerConfig& trainer, DataConfig& data, int world_size);

}  // namespace lockstep::train
