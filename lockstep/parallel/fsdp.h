#pragma once

// Fully sharded training (Zhao et al., arXiv 2304.11277; Rajbhandari et al.,
// arXiv 1910.02054, stage 3): each rank holds its rows of every parameter, of
// its gradient and of its optimiser state. Each block is one unit, what lies in
// no block the root unit. Order of collectives, equal on all ranks, one a unit:
//
//   begin()       gather root, gather block 0
//   forward i     gather block i+1 while i computes; i is freed after it (the
//                 last stays, backward begins with it)
//   backward i    gather block i-1 while i computes; then i is freed and its
//                 gradients leave, one reduction in flight
//   finish()      reduce root; wait
//
// Peak a rank: parts (16 bytes a parameter with Adam in fp32, over the ranks),
// two gathered blocks, two blocks of gradients (one being filled, one in
// flight), the root. Accumulated batches are reduced each and added in the
// parts, so the peak stays. Blocks must run in order, each at most once a pass,
// on every rank. Parameters that backward does not reach have a gradient of
// zero. The model is built whole, on every rank from the same seed.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

struct FsdpOptions {
  // Of the gathered weights and the arithmetic; parts and reductions keep the
  // parameters' type.
  std::optional<at::ScalarType> compute{};
  // The blocks' functions add to .grad where it is there (models/sink.h): it is
  // what travels then, and no gradient is rounded or copied on its way.
  bool direct_gradients = false;
};

class Fsdp : public Strategy {
 public:
  // `parameters` of the whole model by name; `blocks` has those of each block,
  // in the order in which forward runs them. Throws std::invalid_argument.
  Fsdp(
      const NamedTensors& parameters,
      const std::vector<std::vector<at::Tensor>>& blocks,
      collective::Communicator& group,
      const FsdpOptions& options = {});
  ~Fsdp() override;
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  std::string name() const override { return "fsdp"; }
  void begin() override;
  void hold() override;
  void release() override;
  collective::Timing finish() override;
  at::Tensor
  run_block(size_t index, const at::Tensor& input, const Block& block) override;
  void rehearse(const std::function<void()>& pass) override;
  void open() override;
  void close() override;
  bool shards() const override { return true; }

  const std::vector<std::string>& names() const override;
  const std::vector<at::Tensor>& parameters() const override;
  const std::vector<at::Tensor>& gradients() const override;
  double total(double value) override;

  NamedTensors state(NamedTensors state) const override;
  Placements placements() const override;
  void edit_whole(const std::function<void()>& edit) override;
  int64_t reduced_elements() const override;

  // Parts, gradients, gathered weights and buffers, in bytes: the most at any
  // time, and what the longest block and the root have.
  int64_t peak_bytes() const;
  int64_t largest_block_elements() const;
  int64_t root_elements() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the gradient hooks
};

}  // namespace lockstep::parallel
