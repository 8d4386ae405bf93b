#pragma once

// What a host sends and receives in one operation on the ring: a stream of
// steps. In each, a part is sent to the next host and one received from the
// previous; the part sent in a step that is not `fresh` is the one received in
// the step before, so it can be sent as far as that has come. Pure.

#include <cstddef>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::collective {

struct Extent {
  size_t offset = 0;
  size_t bytes = 0;
};
// What belongs to one host.
using Extents = std::vector<Extent>;

// The contiguous bytes at a position within some extents.
Extent at_position(const Extents& extents, size_t position);

struct RingPlan {
  struct Step {
    Extents extents;
    bool fresh = false;   // of a send: needs nothing received
    bool reduce = false;  // of a receive
    size_t bytes = 0;
    size_t after = 0;  // of a send: the receive that it passes on
  };
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  std::vector<Step> sends;
  std::vector<Step> receives;
};

struct RingPlace {
  int index = 0;  // of this host
  int size = 1;
};

RingPlan
plan_all_reduce(RingPlace place, size_t count, DataType type, ReduceOp op);
// `parts` by host; ours becomes the reduction.
RingPlan plan_reduce_scatter(
    RingPlace place,
    const std::vector<Extents>& parts,
    DataType type,
    ReduceOp op);
RingPlan plan_all_gather(RingPlace place, const std::vector<Extents>& parts);
RingPlan plan_broadcast(RingPlace place, size_t bytes, int root_host);

}  // namespace lockstep::collective
