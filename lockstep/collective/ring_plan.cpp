#include "lockstep/collective/ring_plan.h"

#include <algorithm>
#include <utility>

namespace lockstep::collective {
namespace {

constexpr size_t kBlock = 512 << 10;  // of one round, for each host

size_t bytes_of(const Extents& extents) {
  size_t bytes = 0;
  for (const Extent& extent : extents) {
    bytes += extent.bytes;
  }
  return bytes;
}

void send(RingPlan& plan, Extents extents, bool fresh) {
  RingPlan::Step step{std::move(extents), fresh, false, 0, 0};
  step.bytes = bytes_of(step.extents);
  step.after = plan.receives.empty() ? 0 : plan.receives.size() - 1;
  plan.sends.push_back(std::move(step));
}

void receive(RingPlan& plan, Extents extents, bool reduce) {
  RingPlan::Step step{std::move(extents), false, reduce, 0, 0};
  step.bytes = bytes_of(step.extents);
  plan.receives.push_back(std::move(step));
}

// Hosts are counted round the ring, also below 0.
size_t around(int host, int size) {
  return static_cast<size_t>((host % size + size) % size);
}

}  // namespace

Extent at_position(const Extents& extents, size_t position) {
  for (const Extent& extent : extents) {
    if (position < extent.bytes) {
      return {extent.offset + position, extent.bytes - position};
    }
    position -= extent.bytes;
  }
  return {};
}

RingPlan
plan_all_reduce(RingPlace place, size_t count, DataType type, ReduceOp op) {
  const size_t element = size_of(type);
  const auto num = static_cast<size_t>(place.size);
  RingPlan plan{type, op, {}, {}};
  // Blocks, each reduced and gathered before the next: its bytes are sent on
  // while they are still in the cache.
  const size_t block = kBlock / element * num;
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t length = std::min(block, count - begin);
    const size_t line = 64 / element;
    const size_t each = ((length + num - 1) / num + line - 1) / line * line;
    const auto part = [&](int host) {
      const size_t from = std::min(each * around(host, place.size), length);
      const size_t to = std::min(from + each, length);
      return Extents{{(begin + from) * element, (to - from) * element}};
    };
    for (int step = 0; step < 2 * (place.size - 1); ++step) {
      send(plan, part(place.index - step), step == 0);
      receive(plan, part(place.index - step - 1), step < place.size - 1);
    }
  }
  return plan;
}

RingPlan plan_reduce_scatter(
    RingPlace place,
    const std::vector<Extents>& parts,
    DataType type,
    ReduceOp op) {
  RingPlan plan{type, op, {}, {}};
  for (int step = 0; step < place.size - 1; ++step) {
    const int host = place.index - step - 1;
    send(plan, parts[around(host, place.size)], step == 0);
    receive(plan, parts[around(host - 1, place.size)], true);
  }
  return plan;
}

RingPlan plan_all_gather(RingPlace place, const std::vector<Extents>& parts) {
  RingPlan plan;
  for (int step = 0; step < place.size - 1; ++step) {
    const int host = place.index - step;
    send(plan, parts[around(host, place.size)], step == 0);
    receive(plan, parts[around(host - 1, place.size)], false);
  }
  return plan;
}

RingPlan plan_broadcast(RingPlace place, size_t bytes, int root_host) {
  RingPlan plan;
  const Extents all = {{0, bytes}};
  const int distance =
      static_cast<int>(around(place.index - root_host, place.size));
  if (distance > 0) {
    receive(plan, all, false);
  }
  if (distance < place.size - 1) {
    send(plan, all, distance == 0);
  }
  return plan;
}

}  // namespace lockstep::collective
