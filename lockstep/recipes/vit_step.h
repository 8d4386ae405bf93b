#pragma once

// A training step of the vision transformer that never waits for its device:
// pixels to patches, forward, backward and update by lockstep/kernels, in a
// CUDA graph where the batch has its usual size and the weights are all here.
// On a GPU with bf16; tests run it on the CPU's twins. One thread.

#include <array>
#include <map>
#include <vector>

#include "lockstep/models/vit.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/recipes/pixel_reader.h"
#include "lockstep/train/optimizer.h"
#include "lockstep/train/recipe.h"
#include "lockstep/train/step_graph.h"

namespace lockstep::recipes {

class VitStep {
 public:
  // All of these outlive it. The model computes with kernels from now on.
  VitStep(
      models::Vit& model,
      parallel::Strategy& strategy,
      train::Optimizer& optimizer,
      const train::Context& context,
      double label_smoothing);

  // Whether this run may train so: kernels for its shape, bf16 on a GPU.
  static bool fits(
      const models::VitOptions& model,
      const train::Context& context);

  struct Batch {
    at::Tensor images;  // uint8 [n, c, h, w] in channels_last, or floats
    at::Tensor labels;  // [n]
    // int32 [n, 3]: mirrored, row and column of the crop; undefined: as it is.
    at::Tensor moves{};
    // Mixup: image i is `share` of itself and the rest of partners[i].
    at::Tensor partners{};
    double share = 1;
    double weight = 1;  // of the global batch
  };
  // Metrics on the device: loss, accuracy.
  train::StepOutput run(const std::vector<Batch>& batches, double lr);

  // How pixels become patches from now on.
  void read_pixels(
      int64_t padding,
      const std::array<float, 3>& mean,
      const std::array<float, 3>& stddev);

  // Forward and backward of `count` samples, without reduction or update.
  void trial(int64_t count);

  // Logits without chance and gradients.
  at::Tensor logits(const at::Tensor& images);
  bool in_graph() const { return graph_.captured(); }

 private:
  // What a captured step reads: tensors that stay where they are.
  struct Input {
    Batch batch;
    at::Tensor share;  // [1]
  };
  Input& input_for(size_t index, const Batch& batch);
  void forward_and_backward(const Input& input, size_t index, size_t count);

  models::Vit& model_;
  parallel::Strategy& strategy_;
  train::Optimizer& optimizer_;
  train::Context context_;
  double label_smoothing_;
  PixelReader reader_;
  train::StepGraph graph_;
  std::map<std::pair<size_t, int64_t>, Input> inputs_;
  at::Tensor lr_;
  at::Tensor metrics_;
};

}  // namespace lockstep::recipes
