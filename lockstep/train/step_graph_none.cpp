#include "lockstep/train/step_graph.h"

namespace lockstep::train {

struct StepGraph::Impl {};

StepGraph::StepGraph(c10::Device /*device*/, bool /*wanted*/) {}

StepGraph::~StepGraph() = default;

void StepGraph::run(
    const std::vector<int64_t>& /*sizes*/,
    const std::function<void()>& body) {
  body();
}

bool StepGraph::captured() const {
  return false;
}

void use_own_stream(c10::Device /*device*/) {}

void* stream_of(c10::Device /*device*/) {
  return nullptr;
}

}  // namespace lockstep::train
