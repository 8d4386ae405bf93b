#pragma once

// What the ranks of a host share besides their data, and how it is read: the
// control file of a SharedGroup. For the files of shared_group only; the small
// members are here because every operation goes through them.

#include "lockstep/collective/shared_group.h"

namespace lockstep::collective {

inline constexpr int kMaxRanks = 256;

// Processors fetch pairs of lines: neighbours would be pulled along.
inline constexpr size_t kApart = 128;
inline constexpr uint64_t kChunkBits = 16;
inline constexpr size_t kMaxReason = 960;
inline constexpr int kMaxFailedRanks = 64;

// The control file: this, then arrivals and slices, [rank][number % kRing].
struct SharedGroup::Control {
  alignas(
      kApart) std::atomic<uint32_t> failed;  // 1: being written, 2: readable
  uint32_t reason_size;
  int32_t num_ranks;
  int32_t ranks[kMaxFailedRanks];
  char reason[kMaxReason];
  alignas(
      kApart) std::atomic<uint32_t> event;  // the word that sleepers wait on
  std::atomic<uint32_t> sleepers;
};

struct alignas(kApart) SharedGroup::Arrival {
  std::atomic<uint64_t> number;
  uint64_t ticks;
  uint64_t signature;
  uint64_t count;
  uint64_t offset;
  uint64_t part;  // of pieces, like the offset
};

// Both words: operation number, then how many chunks. Apart, because others
// watch the second while the owner takes the first.
struct SharedGroup::Slice {
  alignas(kApart) std::atomic<uint64_t> claimed;
  alignas(kApart) std::atomic<uint64_t> finished;
};

inline SharedGroup::Arrival& SharedGroup::arrival(int index, uint64_t number)
    const {
  return arrivals_[static_cast<uint64_t>(index) * kRing + number % kRing];
}

inline SharedGroup::Slice& SharedGroup::slice(int index, uint64_t number)
    const {
  return slices_[static_cast<uint64_t>(index) * kRing + number % kRing];
}

inline bool SharedGroup::slice_done(const Pending& p, int index) const {
  const uint64_t word =
      slice(index, p.number).finished.load(std::memory_order_acquire);
  const uint64_t number = word >> kChunkBits;
  return number > p.number ||
         (number == p.number &&
          (word & ((1 << kChunkBits) - 1)) == p.num_chunks);
}

}  // namespace lockstep::collective
