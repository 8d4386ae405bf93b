#pragma once

// Tests a classifier: mean cross-entropy, accuracy and the confusion matrix
// over everything that the ranks' loaders give, each sample once.

#include <functional>
#include <string>
#include <vector>

#include "lockstep/train/recipe.h"

namespace lockstep::train {

struct ClassifierTest {
  std::vector<std::string> classes;
  // Logits of a loader's images, which are on the device.
  std::function<at::Tensor(const at::Tensor& images)> logits;
  // Where all ranks must make equally many passes (a sharded model): what a
  // rank does that has no batch left. Empty: nothing.
  std::function<void()> idle{};
};

// All ranks together. Values: val_loss, val_accuracy.
Evaluation test_classifier(
    data::Loader& loader,
    const ClassifierTest& test,
    const Context& context);

}  // namespace lockstep::train
