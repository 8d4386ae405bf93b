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
#include <vector>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

struct DdpOptions {
  size_t first_bucket_bytes = 1 << 20;  // small, so that communication starts
  size_t bucket_bytes = 25 << 20;
};

class Ddp : public Strategy {
 public:
  Ddp(NamedTensors parameters,
      collective::Communicator& group,
      const DdpOptions& options = {});
  ~Ddp() override;
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;

  std::string name() const override { return "ddp"; }
  void begin() override;
  void hold() override;
  void release() override;
  collective::Timing finish() override;
  at::Tensor run_block(size_t, const at::Tensor& input, const Block& block)
      override {
    return block(input);
  }
  void rehearse(const std::function<void()>& pass) override {
    hold();  // nobody waits for these gradients
    pass();
  }

  // In the order given; what needs no gradient is left out.
  const std::vector<std::string>& names() const override;
  const std::vector<at::Tensor>& parameters() const override;
  const std::vector<at::Tensor>& gradients() const override;

  int64_t reduced_elements() const override;
  int64_t num_buckets() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the gradient hooks
};

// Copies rank 0's tensors to all ranks.
void broadcast(const NamedTensors& tensors, collective::Communicator& group);

}  // namespace lockstep::parallel
