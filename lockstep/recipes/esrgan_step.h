#pragma once

// A step of ESRGAN: generator, discriminator and feature network with gradients
// and optimisers; everything except data, so that tests can give it. Before the
// generator is warm, it learns from pixels alone (L1); then
//   G = L1 of VGG features + lambda_adv x relativistic + lambda_pixel x L1
//   D = the relativistic loss
// Real and generated images pass D once each: both losses read the same logits,
// as D does not change between them. Means are over this rank's batch.

#include <memory>

#include "lockstep/models/esrgan.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/graph_inputs.h"
#include "lockstep/train/graphed_step.h"

namespace lockstep::recipes {

struct EsrganLosses {
  double lambda_adv = 5e-3;
  double lambda_pixel = 1e-2;
};

class EsrganPair {
 public:
  EsrganPair(
      const models::EsrganOptions& options,
      const EsrganLosses& losses,
      const train::OptimConfig& optim,
      const train::Context& context);

  // The content term, by torchvision's names; without, the run has none.
  // Throws TrainError for a file that is not VGG19.
  void load_vgg(const std::string& path);

  struct Micro {
    at::Tensor low;  // [n, c, h, w]
    at::Tensor high;
    double weight = 1;  // share of the global batch
  };
  // Metrics: loss_g, loss_d, loss_content, loss_adv, loss_pixel; zeros where a
  // term is not computed. On a GPU it returns before they are there, and is one
  // CUDA graph (one a phase) where the batch has its usual size.
  train::StepOutput
  step(const std::vector<Micro>& micros, double lr, bool warming);

  models::EsrganGenerator& generator() { return *generator_; }
  models::EsrganDiscriminator& discriminator() { return *discriminator_; }
  models::Vgg19Features* vgg() { return vgg_.get(); }
  parallel::Strategy& generator_ddp() { return *for_generator_.strategy; }
  parallel::Strategy& discriminator_ddp() {
    return *for_discriminator_.strategy;
  }
  // Not of VGG, which does not change.
  parallel::NamedTensors tensors() const;
  parallel::NamedTensors extra() const;

 private:
  collective::Timing
  update(const std::vector<Micro>& micros, double lr, bool warming);
  at::Tensor warm(const Micro& micro);
  at::Tensor learn(const Micro& micro);

  train::Context context_;
  EsrganLosses losses_;
  train::GraphedStep step_;
  bool warming_ = true;  // at the last step
  train::GraphInputs inputs_;
  std::shared_ptr<models::EsrganGenerator> generator_;
  std::shared_ptr<models::EsrganDiscriminator> discriminator_;
  std::shared_ptr<models::Vgg19Features> vgg_;
  Trained for_generator_;
  Trained for_discriminator_;
};

}  // namespace lockstep::recipes
