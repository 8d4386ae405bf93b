#pragma once

// A step of training as one CUDA graph: run plainly a few times, then
// captured, then replayed, so that hundreds of small launches cost the host
// one. Where there is no CUDA (step_graph_none.cpp), or memory is short, the
// body runs plainly each time. One thread.
//
// What the body reads must lie in tensors that stay where they are and are
// filled before each run; what it leaves in tensors of its own is there after
// each run until the next. It must not wait for the device.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::train {

class StepGraph {
 public:
  // Without `wanted` every run is plain.
  StepGraph(c10::Device device, bool wanted);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // `sizes` is what the launches depend on, the samples of each batch of the
  // step; the steps of one list are captured, others run plainly.
  void run(
      const std::vector<int64_t>& sizes,
      const std::function<void()>& body);
  bool captured() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Puts what this thread does on `device` on a stream of its own, which capture
// needs. Before the first gradient. NCCL's collectives follow the default
// stream: not with them.
void use_own_stream(c10::Device device);

// The stream in use, for kernels.
void* stream_of(c10::Device device);

}  // namespace lockstep::train
