#include "lockstep/parallel/unit.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <stdexcept>

namespace lockstep::parallel {
namespace {

// Each tensor of a unit starts on a cache line of its own, in any type.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t count) {
  return (count + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t shard_dimension(const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) {
      return dim;
    }
  }
  return 0;
}

}  // namespace

Unit::Unit(
    std::vector<Parameter> parameters,
    int rank,
    int ranks,
    at::ScalarType compute,
    Exchange& exchange)
    : parameters_(std::move(parameters)), compute_(compute) {
  at::NoGradGuard no_grad;
  const auto type = parameters_.front().tensor.scalar_type();
  for (auto& parameter : parameters_) {
    const auto& tensor = parameter.tensor;
    if (tensor.dim() == 0 || tensor.numel() == 0 ||
        tensor.scalar_type() != type) {
      throw std::invalid_argument(
          fmt::format(
              "fsdp: parameter '{}' cannot be sharded: {}",
              parameter.name,
              tensor.scalar_type() != type ? "its block has several types"
              : tensor.dim() == 0          ? "it has no dimension"
                                           : "it is empty"));
    }
    auto& placement = parameter.placement;
    placement.sizes = tensor.sizes().vec();
    placement.dim = shard_dimension(tensor);
    const int64_t rows = tensor.size(placement.dim);
    const int64_t row = tensor.numel() / rows;
    placement.rows_per_rank = (rows + ranks - 1) / ranks;
    placement.offset = std::min(rows, rank * placement.rows_per_rank);
    // channels_last has its rows in one piece, too.
    const auto dense = tensor.is_non_overlapping_and_dense() &&
                               tensor.stride(placement.dim) == row
                           ? tensor
                           : tensor.contiguous();
    parameter.strides = dense.strides().vec();
    const int64_t count = placement.rows_per_rank * row;
    pieces_.list.push_back(
        {pieces_.whole, static_cast<size_t>(count), pieces_.part});
    pieces_.whole += static_cast<size_t>(aligned(count * ranks));
    pieces_.part += static_cast<size_t>(aligned(count));
    num_elements_ += tensor.numel();
  }
  part_ = exchange.allocate(static_cast<int64_t>(pieces_.part), type);
  gradient_ = exchange.allocate(static_cast<int64_t>(pieces_.part), type);
  const auto device = part_.device();
  storage_ = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      pieces_.whole * c10::elementSize(compute_),
      c10::DataPtr(nullptr, device),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = parameters_[i];
    const auto& placement = parameter.placement;
    const int64_t left =
        placement.sizes[static_cast<size_t>(placement.dim)] - placement.offset;
    auto sizes = placement.sizes;
    sizes[static_cast<size_t>(placement.dim)] =
        std::min(left, placement.rows_per_rank);
    const auto at = static_cast<int64_t>(pieces_.list[i].part_at);
    parameter.part = part_.as_strided(sizes, parameter.strides, at);
    parameter.part_gradient =
        gradient_.as_strided(sizes, parameter.strides, at);
    parameter.part.copy_(parameter.tensor.narrow(
        placement.dim,
        placement.offset,
        sizes[static_cast<size_t>(placement.dim)]));
    auto whole = at::empty({0}, part_.options().dtype(compute_));
    whole.set_(
        c10::Storage(storage_),
        static_cast<int64_t>(pieces_.list[i].at),
        placement.sizes,
        parameter.strides);
    gathered_.push_back(whole);
  }
  hide();
  set_memory({});
}

void Unit::set_memory(const at::Tensor& memory) {
  const bool there = memory.defined();
  storage_->set_data_ptr_noswap(
      c10::DataPtr(there ? memory.data_ptr() : nullptr, part_.device()));
  storage_->set_nbytes(
      there ? pieces_.whole * c10::elementSize(compute_) : size_t{0});
}

at::Tensor Unit::view(const at::Tensor& whole, size_t i) const {
  return whole.as_strided(
      parameters_[i].placement.sizes,
      parameters_[i].strides,
      static_cast<int64_t>(pieces_.list[i].at));
}

void Unit::show(const at::Tensor& whole) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.set_data(view(whole, i));
  }
}

void Unit::hide() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.set_data(gathered_[i]);
  }
}

void Unit::take_parts(const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& placement = parameters_[i].placement;
    parameters_[i].part.copy_(view(whole, i).narrow(
        placement.dim,
        placement.offset,
        parameters_[i].part.size(placement.dim)));
  }
}

}  // namespace lockstep::parallel
