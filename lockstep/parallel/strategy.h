#pragma once

// How a model is trained on many ranks, as recipes see it: replicated (Ddp) or
// sharded (Fsdp). A recipe calls the same sequence for both:
//
//   strategy.begin();                         a step begins
//   strategy.hold(); forward, backward; strategy.release();   accumulation:
//   forward, backward                         all but the last
//   strategy.finish();                        every gradient is reduced
//   optimizer.step(strategy.gradients());
//
// and runs the blocks of its model by run_block(). A step is a transaction:
// finish() returns only when every reduction succeeded on this rank, and throws
// CollectiveError otherwise; nobody updates before it returned. Gradients are
// summed: weight the loss by this rank's share of the global batch. One thread;
// all ranks call the same sequence.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::parallel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Where a rank's part of a tensor lies in the whole: rows
// [offset, offset + part.size(dim)) along `dim`, of `rows_per_rank` or fewer.
struct Placement {
  std::vector<int64_t> sizes;  // of the whole
  int64_t dim = 0;
  int64_t offset = 0;
  int64_t rows_per_rank = 0;
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> result(sizes.size());
    result[static_cast<size_t>(dim)] = offset;
    return result;
  }
};
using Placements = std::map<std::string, Placement>;

class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;

  virtual void begin() = 0;
  virtual void hold() = 0;
  virtual void release() = 0;
  // Time that this rank was blocked, from begin() on.
  virtual collective::Timing finish() = 0;

  // block(input), where block `index` is the index-th of the model.
  using Block = std::function<at::Tensor(const at::Tensor&)>;
  virtual at::Tensor
  run_block(size_t index, const at::Tensor& input, const Block& block) = 0;

  // A forward and backward of this rank alone, with the memory of a step, and
  // without reductions; what it computes means nothing. Also when a step
  // failed half-way, unless shards().
  virtual void rehearse(const std::function<void()>& pass) = 0;

  // Around forward passes without begin() and finish(): validation. All ranks
  // make the same number of passes where shards() says so.
  virtual void open() {}
  virtual void close() {}
  virtual bool shards() const { return false; }

  // What this rank updates, by name, with its gradients: all of each parameter
  // or its part.
  virtual const std::vector<std::string>& names() const = 0;
  virtual const std::vector<at::Tensor>& parameters() const = 0;
  virtual const std::vector<at::Tensor>& gradients() const = 0;
  // The sum of a value over the ranks that hold different gradients.
  virtual double total(double value) { return value; }

  // `state` of the module with our parts in place of whole parameters, and
  // where they lie; empty when nothing is in parts.
  virtual NamedTensors state(NamedTensors state) const { return state; }
  virtual Placements placements() const { return {}; }
  // Lets `edit` change the module's parameters while they are whole. Rank 0's
  // count; a replicated model gets them when its state is shared.
  virtual void edit_whole(const std::function<void()>& edit) { edit(); }

  // For tests and the events: elements reduced since construction.
  virtual int64_t reduced_elements() const = 0;
};

// Restores: open() for a scope.
class OpenGuard {
 public:
  explicit OpenGuard(Strategy& strategy) : strategy_(strategy) {
    strategy_.open();
  }
  ~OpenGuard() { strategy_.close(); }
  OpenGuard(const OpenGuard&) = delete;
  OpenGuard& operator=(const OpenGuard&) = delete;

 private:
  Strategy& strategy_;
};

collective::DataType data_type(const at::Tensor& tensor);

}  // namespace lockstep::parallel
