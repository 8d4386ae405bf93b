#pragma once

// One collective operation as a value, and its words for messages.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::collective {

enum class Kind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kReduce,  // to `root` only
  kGatherPieces,
  kScatterPieces,
};

struct Operation {
  Kind kind = Kind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  size_t count = 0;  // elements; of one block where there are blocks
  void* data = nullptr;
  void* part = nullptr;  // of pieces; `data` is their whole, `count` a part's
  const Pieces* pieces = nullptr;

  // Bytes of the memory at `data` in a group of `size`.
  size_t bytes(int size) const;
  // Everything but the count and the place, in one word: equal on all ranks.
  uint64_t signature() const;
};

// "all_reduce of 1024 float32 (sum)".
std::string describe(const Operation& operation);
// The same from a signature that came from another rank.
std::string describe(uint64_t signature, uint64_t count);

// Throws CollectiveError unless 0 <= root < size.
void check_root(int root, int size);

// "rank 3", "ranks 1, 2 and 5".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::collective
