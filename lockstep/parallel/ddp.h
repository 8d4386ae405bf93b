#pragma once

// Data-parallel gradients (Li et al., arXiv 2006.15704): parameters lie in
// buckets, each parameter's .grad is a view of its bucket for life, and a
// bucket is reduced as soon as its last gradient is there, while backward goes
// on. A step is a transaction: finish() returns only when every bucket has
// been reduced on this rank, and throws CollectiveError otherwise; nobody
// updates before it returned.
//
//   ddp.begin();                      zero the buckets
//   ddp.hold(); backward...; ddp.release();   accumulation: all but the last
//   backward...                       buckets leave as they fill
//   ddp.finish();                     the rest, then wait
//
// Gradients are summed: weight the loss by this rank's share of the global
// batch, and the sum is the gradient of the mean. One thread (the one that
// calls backward; on a CPU autograd runs the hooks there too).

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::parallel {

struct DdpOptions {
  size_t first_bucket_bytes = 1 << 20;  // small, so that communication starts
  size_t bucket_bytes = 25 << 20;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Ddp {
 public:
  Ddp(NamedTensors parameters,
      collective::Communicator& group,
      const DdpOptions& options = {});
  ~Ddp();
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;

  void begin();
  void hold();
  void release();
  // Time that this rank was blocked, from begin() on.
  collective::Timing finish();

  // Parameters with their gradients, in the order given.
  const std::vector<at::Tensor>& parameters() const;
  const std::vector<at::Tensor>& gradients() const;

  // For tests and the events: reductions since construction, by element.
  int64_t reduced_elements() const;
  int64_t num_buckets() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the gradient hooks
};

// Copies rank 0's tensors to all ranks.
void broadcast(const NamedTensors& tensors, collective::Communicator& group);

collective::DataType data_type(const at::Tensor& tensor);

}  // namespace lockstep::parallel
