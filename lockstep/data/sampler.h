#pragma once

// Which samples a rank sees, in which order: a permutation by seed and epoch,
// padded from its own front to a multiple of the world, rank r taking every
// W-th from the r-th. Pure: any step of any epoch can be asked for, so a
// resumed run goes on mid-epoch. Nonsense sizes throw std::invalid_argument.

#include <cstdint>
#include <vector>

namespace lockstep::data {

struct ShardOptions {
  int64_t size = 0;  // of the data set
  int rank = 0;
  int world = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  // Validation counts every sample once: no padding, shards may differ by one.
  bool pad = true;
};

// The rank's indices for an epoch.
std::vector<int64_t> shard(const ShardOptions& options, int64_t epoch);
// How many they are, without making them.
int64_t shard_size(const ShardOptions& options);

// Uneven shards: each batch of all ranks together has the very samples that it
// has with equal shards, and rank r takes the shares[r] that lie behind those
// of the ranks before it. A short last batch is cut in proportion; every rank
// has at least one sample of each. Indices of batch `first` and those after it,
// each batch shares[rank] long but the last. Needs `pad`, and shares above 0.
std::vector<int64_t> uneven_shard(
    const ShardOptions& options,
    const std::vector<int64_t>& shares,
    int64_t epoch,
    int64_t first);

// 0..size-1 in the order of an epoch: Fisher-Yates from the back, the draws
// being the stream of random.h whose key is made of seed and epoch. Equal on
// every machine.
std::vector<int64_t> permutation(int64_t size, uint64_t seed, int64_t epoch);

// ceil(ceil(size/world)/batch), or the floor when drop_last.
int64_t batches_per_epoch(
    int64_t size,
    int world,
    int64_t batch,
    bool drop_last = false);

}  // namespace lockstep::data
