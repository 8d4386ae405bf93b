#pragma once

// The gradients of biases behind kernels/bias_act.h: memory for the column
// sums that up to five backward calls leave, and the one call that adds them
// up where each bias wants them. On a GPU a call of its own for each would
// take longer than the sums themselves.

#include <vector>

#include "lockstep/kernels/bias_act.h"
#include "lockstep/models/sink.h"

namespace lockstep::models {

class BiasGradients {
 public:
  // Of `count` biases of maps like `map` (channels_last, bias_act's types).
  BiasGradients(const at::Tensor& map, int count);
  // Where the backward call for bias `index` leaves its sums.
  void receive(kernels::BiasActBackward& call, int index) const;
  // Once all calls are on the stream; a sink a bias.
  void add_to(const std::vector<const Sink*>& biases) const;

 private:
  at::Tensor map_;
  int count_;
  int groups_;
  at::Tensor sums_;  // [groups, count x channels]
};

}  // namespace lockstep::models
