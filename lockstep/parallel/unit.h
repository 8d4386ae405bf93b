#pragma once

// Parameters that are gathered and freed together: a block of a model, or what
// lies in no block. Of each parameter a rank owns the rows
// [rank x n, (rank + 1) x n) along its first dimension that is longer than 1,
// in one flat tensor of all parts. The module's parameters stay what they are
// to autograd: tensors over one storage, which gets memory when the unit is
// gathered and has none otherwise, so that tensors that backward saved see the
// refilled weights. Passive: Fsdp says when.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <vector>

#include "lockstep/parallel/exchange.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

class Unit {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;  // the module's
    size_t index = 0;   // in the model
    Placement placement{};
    at::Tensor part{};               // the rows that are ours, perhaps none
    at::Tensor part_gradient{};      // the same rows
    bool arrived = false;            // its gradient, in this backward
    std::vector<int64_t> strides{};  // of the whole
  };

  // Takes the parts from the module's parameters and frees those. `compute` is
  // the type of the gathered weights. Throws std::invalid_argument for
  // parameters that cannot be sharded.
  Unit(
      std::vector<Parameter> parameters,
      int rank,
      int ranks,
      at::ScalarType compute,
      Exchange& exchange);

  const collective::Pieces& pieces() const { return pieces_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int64_t num_elements() const { return num_elements_; }
  at::ScalarType type() const { return part_.scalar_type(); }
  at::ScalarType compute_type() const { return compute_; }

  const at::Tensor& part() const { return part_; }
  const at::Tensor& gradient() const { return gradient_; }

  // The whole weights are at `memory` now, or nowhere (undefined).
  void set_memory(const at::Tensor& memory);
  // Parameter `i` inside a flat whole, with its sizes and strides.
  at::Tensor view(const at::Tensor& whole, size_t i) const;
  // The module's parameters in another whole (of any type), and back.
  void show(const at::Tensor& whole);
  void hide();
  // Our rows of such a whole.
  void take_parts(const at::Tensor& whole);

 private:
  std::vector<Parameter> parameters_;
  at::ScalarType compute_;
  collective::Pieces pieces_;
  int64_t num_elements_ = 0;
  at::Tensor part_;
  at::Tensor gradient_;
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  std::vector<at::Tensor> gathered_;  // over storage_
};

}  // namespace lockstep::parallel
