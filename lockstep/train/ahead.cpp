#include "lockstep/train/ahead.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::train {

Ahead::Ahead(c10::Device device) : device_(device) {
  if (!device.is_cpu()) {
    side_ = c10::impl::VirtualGuardImpl(device.type())
                .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

at::Tensor Ahead::bring(int64_t slot, const at::Tensor& source) {
  if (!side_) {
    return source;
  }
  const c10::impl::VirtualGuardImpl device(device_.type());
  const auto step = device.getStream(device_);
  Room& room = rooms_[{slot, source.sizes().vec()}];
  if (!room.input.defined()) {
    const auto there = source.options().device(device_).pinned_memory(false);
    room.landing = at::empty_like(source, there);
    room.input = at::empty_like(source, there);
    room.taken.emplace(device_.type());
    // Whoever had this memory before is done with it first.
    room.taken->record(step);
  }
  room.taken->block(*side_);
  device.exchangeStream(*side_);
  room.landing.copy_(source, /*non_blocking=*/true);
  device.exchangeStream(step);
  c10::Event landed(device_.type());
  landed.record(*side_);
  landed.block(step);
  room.input.copy_(room.landing, /*non_blocking=*/true);
  room.taken->record(step);
  return room.input;
}

}  // namespace lockstep::train
