#include "lockstep/train/graphed_step.h"

#include <ATen/ops/zeros.h>

namespace lockstep::train {
GraphedStep::GraphedStep(c10::Device device, bool wanted, int64_t num_metrics)
    : device_(device), wanted_(wanted) {
  const auto on = at::TensorOptions().device(device);
  rate_ = at::zeros({1}, on.dtype(at::kFloat));
  metrics_ = at::zeros({num_metrics}, on.dtype(at::kDouble));
}

StepOutput GraphedStep::run(
    const std::vector<int64_t>& sizes,
    double lr,
    const std::function<collective::Timing()>& update) {
  collective::Timing timing;
  const auto body = [&] {
    metrics_.zero_();
    timing = update();
  };
  if (!device_.is_cuda()) {
    body();
    return {metrics_.clone(), timing};
  }
  if (!graph_) {
    graph_ = std::make_unique<StepGraph>(device_, wanted_);
  }
  rate_.fill_(lr);
  graph_->run(sizes, body);
  return {metrics_, timing};
}

void GraphedStep::forget() {
  graph_.reset();
}

}  // namespace lockstep::train
