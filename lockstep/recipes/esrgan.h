#pragma once

// ESRGAN: learns to make images four times larger. First from pixels alone
// (phase "warm-up"), then against a discriminator and by the features of VGG19
// (phase "train"). Validation is PSNR and SSIM on the held-out images. The verb
// 'upscale' applies a checkpoint to images of any size (upscale.h).

#include "lockstep/recipes/esrgan_step.h"
#include "lockstep/recipes/registry.h"

namespace lockstep::recipes {

struct EsrganConfig {
  struct Model {
    int64_t residual_blocks = 23;
    int64_t filters = 64;
    std::string vgg;
    void bind(config::Binder& b);
  };
  train::TrainerConfig trainer;
  train::DataConfig data;
  train::OptimConfig optim;
  Model model;
  EsrganLosses losses;
  int64_t hr_height = 128;
  int64_t hr_width = 128;
  int64_t warmup_batches = 500;
  int64_t decay_epoch = 10;
  int64_t sample_interval = 5;
  int64_t validation_samples = 256;
  // Of 'upscale'.
  std::string image;
  int64_t tile = 0;
  std::string out;
  std::string checkpoint;
  EsrganConfig();
  void bind(config::Binder& b);
};

// The factor on the learning rate in `epoch` (from 0) of `epochs`: 1 before
// `decay_epoch`, then falling evenly, so that 0 would come after the last one.
double decay(int64_t epoch, int64_t decay_epoch, int64_t epochs);

Entry esrgan_entry();

}  // namespace lockstep::recipes
