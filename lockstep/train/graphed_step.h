#pragma once

// A recipe's step as one CUDA graph where it can be, and plainly elsewhere:
// holds what such a step reads and leaves in one place, the learning rate and
// the metrics, and knows that on a CPU the next step must not write over
// metrics that somebody still reads. One thread.
//
//   step.run(sizes, lr, [&] { return update(inputs, lr); })
//
// `inputs` must lie where the graph reads them (graph_inputs.h, ahead.h).

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/train/recipe.h"
#include "lockstep/train/step_graph.h"

namespace lockstep::train {

class GraphedStep {
 public:
  // `wanted`: whether a step may be captured (step_graph.h).
  GraphedStep(c10::Device device, bool wanted, int64_t num_metrics);

  // `sizes` of the micro-batches: what launches depend on. On a GPU this
  // returns before the metrics are there.
  StepOutput run(
      const std::vector<int64_t>& sizes,
      double lr,
      const std::function<collective::Timing()>& update);

  // The graph gives its memory back; the next steps are of another kind.
  void forget();

  // On the device: a float [1], the learning rate of the step that runs (of a
  // GPU's; a CPU's step has the number itself), and doubles that are 0 when it
  // begins and that it adds to.
  const at::Tensor& rate() const { return rate_; }
  const at::Tensor& metrics() const { return metrics_; }

 private:
  c10::Device device_;
  bool wanted_;
  std::unique_ptr<StepGraph> graph_;
  at::Tensor rate_;
  at::Tensor metrics_;
};

}  // namespace lockstep::train
