#pragma once

// DCGAN on images: D learns to tell real from generated, G to fool it. One
// update of each a step; D's gradients are reduced once, and its weight
// gradients are not computed in G's step. Validation is the sliced Wasserstein
// distance between generated and held-out images (smaller is better).

#include "lockstep/models/dcgan.h"
#include "lockstep/recipes/pixel_reader.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/graph_inputs.h"
#include "lockstep/train/graphed_step.h"
#include "lockstep/train/optimizer.h"

namespace lockstep::recipes {

struct DcganConfig {
  struct Model {
    int64_t nz = 100;
    int64_t ngf = 64;
    int64_t ndf = 64;
    void bind(config::Binder& b);
  };
  train::TrainerConfig trainer;
  train::DataConfig data;
  train::OptimConfig optim;
  Model model;
  int64_t sample_every = 100;
  int64_t validation_samples = 256;
  std::string out;
  std::string checkpoint;
  DcganConfig();
  void bind(config::Binder& b);
};

// The two networks with their gradients and optimisers: everything a step
// needs except data and noise, so that tests can give both.
class DcganPair {
 public:
  DcganPair(
      const models::DcganOptions& options,
      const train::OptimConfig& optim,
      const train::Context& context);

  struct Micro {
    at::Tensor real;  // floats, or uint8 of any size on a GPU in bf16
    at::Tensor noise;
    double weight = 1;  // share of the global batch
  };
  // One update of D, one of G. Metrics: loss_d, loss_g, d_x, d_g_z1, d_g_z2. On
  // a GPU it returns before they are there, and is one CUDA graph where the
  // batch has its usual size.
  train::StepOutput step(const std::vector<Micro>& micros, double lr);

  models::DcganGenerator& generator() { return *generator_; }
  models::DcganDiscriminator& discriminator() { return *discriminator_; }
  parallel::Strategy& generator_ddp() { return *for_generator_.strategy; }
  parallel::Strategy& discriminator_ddp() {
    return *for_discriminator_.strategy;
  }
  parallel::NamedTensors tensors() const;
  parallel::NamedTensors extra() const;

 private:
  collective::Timing update(const std::vector<Micro>& micros, double lr);
  std::vector<Micro> in_place(const std::vector<Micro>& micros);

  train::Context context_;
  train::GraphedStep step_;
  train::GraphInputs inputs_;
  PixelReader reader_;
  std::shared_ptr<models::DcganGenerator> generator_;
  std::shared_ptr<models::DcganDiscriminator> discriminator_;
  Trained for_generator_;
  Trained for_discriminator_;
};

// Images on 64 fixed random directions: [n, 64].
at::Tensor projected(const at::Tensor& images);
// Mean distance between the sorted projections of two equally many images.
double sliced_wasserstein(const at::Tensor& a, const at::Tensor& b);

Entry dcgan_entry();

}  // namespace lockstep::recipes
