#include "lockstep/parallel/exchange.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {
namespace {

// Piece `piece` of all ranks in the whole, and in what is packed.
at::Tensor in_whole(
    const at::Tensor& whole,
    const collective::Pieces::Piece& piece,
    int64_t ranks) {
  const auto count = static_cast<int64_t>(piece.count);
  return whole.narrow(0, static_cast<int64_t>(piece.at), ranks * count)
      .view({ranks, count});
}

at::Tensor in_packed(
    const at::Tensor& packed,
    const collective::Pieces::Piece& piece) {
  return packed.narrow(
      1,
      static_cast<int64_t>(piece.part_at),
      static_cast<int64_t>(piece.count));
}

}  // namespace

collective::Timing Exchange::Flight::wait() {
  const auto timing = work_.wait();
  work_ = {};
  if (land_) {
    land_();
    land_ = nullptr;
  }
  return timing;
}

Exchange::Exchange(collective::Communicator& group, c10::Device device)
    : group_(group),
      device_(device),
      direct_(group.takes_pieces() && device.is_cpu()) {}

at::Tensor
Exchange::make(int64_t count, at::ScalarType type, c10::Device device) const {
  const auto options = at::TensorOptions().dtype(type).device(device);
  if (!device.is_cpu() || group_.takes_device_memory()) {
    return at::zeros({count}, options);
  }
  const auto memory =
      group_.allocate(static_cast<size_t>(count) * c10::elementSize(type));
  return at::from_blob(memory.data(), {count}, [memory](void*) {}, options);
}

at::Tensor Exchange::allocate(int64_t count, at::ScalarType type) {
  const auto made = make(count, type, device_);
  const auto bytes = static_cast<int64_t>(made.nbytes());
  count_->now += bytes;
  count_->peak = std::max(count_->peak, count_->now);
  return at::from_blob(
      made.data_ptr(),
      {count},
      [made, bytes, counted = count_](void*) { counted->now -= bytes; },
      made.options());
}

at::Tensor Exchange::take_staging(
    const collective::Pieces& pieces,
    at::ScalarType type) {
  const auto part = static_cast<int64_t>(pieces.part);
  const auto fitting = std::find_if(
      staging_.begin(), staging_.end(), [&](const at::Tensor& idle) {
        return idle.scalar_type() == type && idle.size(1) == part;
      });
  if (fitting != staging_.end()) {
    const auto found = *fitting;
    staging_.erase(fitting);
    return found;
  }
  const c10::Device device = group_.takes_device_memory() ? device_ : at::kCPU;
  return make(group_.size() * part, type, device).view({group_.size(), part});
}

Exchange::Flight Exchange::gather(
    const collective::Pieces& pieces,
    const at::Tensor& part,
    const at::Tensor& whole) {
  if (group_.size() == 1 && !direct_) {
    for (const auto& piece : pieces.list) {
      in_whole(whole, piece, 1).copy_(in_packed(part.unsqueeze(0), piece));
    }
    return {};
  }
  if (direct_) {
    return {
        group_.gather_pieces_async(
            part.data_ptr(), whole.data_ptr(), pieces, data_type(whole)),
        nullptr};
  }
  const auto packed = take_staging(pieces, part.scalar_type());
  packed[group_.rank()].copy_(part);
  return {
      group_.all_gather_async(
          packed.data_ptr(), pieces.part, data_type(packed)),
      [this, &pieces, whole, packed] {
        const auto here = packed.to(device_);
        for (const auto& piece : pieces.list) {
          in_whole(whole, piece, group_.size()).copy_(in_packed(here, piece));
        }
        staging_.push_back(packed);
      }};
}

Exchange::Flight Exchange::scatter(
    const collective::Pieces& pieces,
    const at::Tensor& whole,
    const at::Tensor& part) {
  if (group_.size() == 1 && !direct_) {
    for (const auto& piece : pieces.list) {
      in_packed(part.unsqueeze(0), piece).copy_(in_whole(whole, piece, 1));
    }
    return {};
  }
  if (direct_) {
    return {
        group_.scatter_pieces_async(
            whole.data_ptr(),
            part.data_ptr(),
            pieces,
            data_type(whole),
            collective::ReduceOp::kSum),
        nullptr};
  }
  const auto packed = take_staging(pieces, whole.scalar_type());
  for (const auto& piece : pieces.list) {
    in_packed(packed, piece).copy_(in_whole(whole, piece, group_.size()));
  }
  return {
      group_.reduce_scatter_async(
          packed.data_ptr(),
          pieces.part,
          data_type(packed),
          collective::ReduceOp::kSum),
      [this, part, packed] {
        part.copy_(packed[group_.rank()]);
        staging_.push_back(packed);
      }};
}

}  // namespace lockstep::parallel
