#pragma once

// Inputs of a step that is captured as a graph: they must lie where the graph
// reads them. The copy from the host goes beside what the device still does for
// the step before, to memory of its own; only the short copy within the device
// waits its turn. On a CPU a tensor is its own copy. One thread.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <optional>

namespace lockstep::train {

class Ahead {
 public:
  explicit Ahead(c10::Device device);

  // The numbers of `source` where slot `slot` lies for sources of this shape:
  // the same memory in every step. `source` should be page-locked.
  at::Tensor bring(int64_t slot, const at::Tensor& source);

 private:
  struct Room {
    at::Tensor landing;               // from the host
    at::Tensor input;                 // what the step reads
    std::optional<c10::Event> taken;  // out of `landing`
  };
  c10::Device device_;
  std::optional<c10::Stream> side_;
  std::map<std::pair<int64_t, std::vector<int64_t>>, Room> rooms_;
};

}  // namespace lockstep::train
