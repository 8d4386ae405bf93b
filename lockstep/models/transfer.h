#pragma once

// A classifier whose features are to look alike for two domains, and the
// distances that make them so: CORAL (Sun and Saenko, arXiv 1607.01719),
// ||C_s - C_t||^2 / (4 d^2) with C the covariance of a batch (n - 1), and MMD
// (Long et al., arXiv 1502.02791) with five Gaussian kernels whose widths
// double. Distances are computed in fp32 or wider.

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "lockstep/models/backbone.h"

namespace lockstep::models {

struct TransferOptions {
  BackboneOptions backbone;
  int64_t bottleneck = 256;  // width; 0: the backbone's features themselves
  int64_t classes = 31;
};

class TransferNet : public torch::nn::Module {
 public:
  explicit TransferNet(const TransferOptions& options);
  // What the distance is between: [n, d].
  at::Tensor features(const at::Tensor& images, int64_t domains = 1);
  at::Tensor classify(const at::Tensor& features);  // logits

  Backbone& backbone() { return *backbone_; }

 private:
  std::shared_ptr<Backbone> backbone_;
  torch::nn::Linear bottleneck_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};

// Replaces a tensor's numbers by their sum over the ranks.
using SumOverRanks = std::function<void(const at::Tensor&)>;

// Features [n, d] of each domain, n at least 2. With `sum` the covariances are
// those of the batches of all ranks together: the value is the same on all of
// them, and the gradients of each rank are those of the one distance, so that
// they add up.
at::Tensor coral(
    const at::Tensor& source,
    const at::Tensor& target,
    const SumOverRanks& sum = {});

at::Tensor mmd(const at::Tensor& source, const at::Tensor& target);

}  // namespace lockstep::models
