#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>

namespace lockstep::data {
namespace {

ShardOptions options(int64_t size, int rank, int world) {
  ShardOptions result;
  result.size = size;
  result.rank = rank;
  result.world = world;
  result.seed = 5;
  return result;
}

// How often each sample comes in an epoch, over all ranks.
std::map<int64_t, int> counts(int64_t size, int world, bool pad) {
  std::map<int64_t, int> result;
  for (int rank = 0; rank < world; ++rank) {
    ShardOptions shard_of = options(size, rank, world);
    shard_of.pad = pad;
    for (int64_t index : shard(shard_of, 3)) {
      ++result[index];
    }
  }
  return result;
}

TEST(Sampler, IsAPermutation) {
  for (int64_t size : {1, 2, 3, 100, 4099}) {
    std::vector<int64_t> order = permutation(size, 1, 0);
    std::vector<int64_t> sorted(static_cast<size_t>(size));
    std::iota(sorted.begin(), sorted.end(), 0);
    EXPECT_TRUE(
        std::is_permutation(order.begin(), order.end(), sorted.begin()));
  }
}

// The order is part of what a resumed run relies on: it must never change.
TEST(Sampler, OrderIsFixedForAllTime) {
  EXPECT_EQ(
      permutation(8, 0, 0), (std::vector<int64_t>{0, 4, 7, 5, 6, 1, 3, 2}));
  EXPECT_EQ(
      permutation(8, 7, 2), (std::vector<int64_t>{7, 3, 1, 6, 2, 5, 0, 4}));
}

TEST(Sampler, ChangesByEpochAndSeed) {
  EXPECT_EQ(permutation(1000, 1, 4), permutation(1000, 1, 4));
  EXPECT_NE(permutation(1000, 1, 4), permutation(1000, 1, 5));
  EXPECT_NE(permutation(1000, 1, 4), permutation(1000, 2, 4));
  // Seed and epoch must not be interchangeable.
  EXPECT_NE(permutation(1000, 1, 2), permutation(1000, 2, 1));
}

TEST(Sampler, SpreadsEvenly) {
  // Where sample 0 lands over many epochs: mean in the middle.
  double sum = 0;
  constexpr int kEpochs = 2000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = permutation(101, 9, epoch);
    sum += static_cast<double>(
        std::find(order.begin(), order.end(), 0) - order.begin());
  }
  EXPECT_NEAR(sum / kEpochs, 50, 3);  // standard error .65
}

TEST(Sampler, PadsFromItsOwnFront) {
  for (auto [size, world] : {std::pair{10, 4}, {50, 8}, {7, 7}, {3, 8}}) {
    const auto seen = counts(size, world, true);
    EXPECT_EQ(seen.size(), static_cast<size_t>(size));
    int64_t all = 0;
    for (const auto& [index, count] : seen) {
      all += count;
    }
    EXPECT_EQ(all, (size + world - 1) / world * world);
  }
  // 10 over 4: the last two ranks get the first two of the order again.
  const auto order = permutation(10, 5, 3);
  EXPECT_EQ(shard(options(10, 2, 4), 3).back(), order[0]);
  EXPECT_EQ(shard(options(10, 3, 4), 3).back(), order[1]);
}

TEST(Sampler, RanksAreDisjoint) {
  for (const auto& [index, count] : counts(64, 8, true)) {
    EXPECT_EQ(count, 1) << index;
  }
}

TEST(Sampler, WithoutPaddingEachComesOnce) {
  for (auto [size, world] : {std::pair{10, 4}, {3, 8}, {1, 1}}) {
    const auto seen = counts(size, world, false);
    EXPECT_EQ(seen.size(), static_cast<size_t>(size));
    for (const auto& [index, count] : seen) {
      EXPECT_EQ(count, 1) << index;
    }
    ShardOptions last = options(size, world - 1, world);
    last.pad = false;
    EXPECT_EQ(shard_size(last), static_cast<int64_t>(shard(last, 0).size()));
  }
}

TEST(Sampler, WithoutShuffleInOrder) {
  ShardOptions plain = options(7, 1, 3);
  plain.shuffle = false;
  EXPECT_EQ(shard(plain, 9), (std::vector<int64_t>{1, 4, 0}));
}

TEST(Sampler, BatchesAsTheWorkloadsCountThem) {
  EXPECT_EQ(batches_per_epoch(50000, 4, 32), 391);
  EXPECT_EQ(batches_per_epoch(50000, 8, 32), 196);
  EXPECT_EQ(batches_per_epoch(50000, 8, 32, true), 195);
  EXPECT_EQ(batches_per_epoch(5, 1, 8), 1);
  EXPECT_EQ(batches_per_epoch(5, 1, 8, true), 0);
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(shard(options(10, 4, 4), 0), std::invalid_argument);
  EXPECT_THROW(shard(options(10, 0, 0), 0), std::invalid_argument);
  EXPECT_THROW(batches_per_epoch(10, 1, 0), std::invalid_argument);
}

// Samples of each global batch, over all ranks, sorted.
std::vector<std::vector<int64_t>> global_batches(
    ShardOptions options,
    int64_t epoch,
    const std::function<std::vector<int64_t>(const ShardOptions&)>& indices,
    const std::vector<int64_t>& shares) {
  std::vector<std::vector<int64_t>> batches;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    const auto mine = indices(options);
    const auto share =
        static_cast<size_t>(shares[static_cast<size_t>(options.rank)]);
    for (size_t i = 0; i < mine.size(); ++i) {
      batches.resize(std::max(batches.size(), i / share + 1));
      batches[i / share].push_back(mine[i]);
    }
    EXPECT_GE(mine.size(), (batches.size() - 1) * share + 1) << epoch;
  }
  for (auto& batch : batches) {
    std::sort(batch.begin(), batch.end());
  }
  return batches;
}

TEST(UnevenShard, GlobalBatchesAreThoseOfEqualShards) {
  for (const int64_t size : {70, 71, 101, 13, 6}) {
    ShardOptions options;
    options.size = size;
    options.world = 3;
    options.seed = 5;
    const std::vector<int64_t> equal = {2, 2, 2};
    const auto expected = global_batches(
        options, 1, [](const auto& o) { return shard(o, 1); }, equal);
    for (const auto& shares : std::vector<std::vector<int64_t>>{
             {2, 2, 2}, {4, 1, 1}, {1, 3, 2}, {1, 1, 4}}) {
      EXPECT_EQ(
          global_batches(
              options,
              1,
              [&](const auto& o) { return uneven_shard(o, shares, 1, 0); },
              shares),
          expected)
          << size;
    }
  }
}

TEST(UnevenShard, GoesOnFromAnyBatch) {
  ShardOptions options;
  options.size = 100;
  options.world = 2;
  options.rank = 1;
  const std::vector<int64_t> shares = {7, 3};
  const auto all = uneven_shard(options, shares, 2, 0);
  const auto rest = uneven_shard(options, shares, 2, 4);
  EXPECT_EQ(rest, std::vector<int64_t>(all.begin() + 12, all.end()));
  EXPECT_TRUE(uneven_shard(options, shares, 2, 10).empty());
}

TEST(UnevenShard, RefusesNonsense) {
  ShardOptions options;
  options.size = 10;
  options.world = 2;
  EXPECT_THROW(uneven_shard(options, {1}, 0, 0), std::invalid_argument);
  EXPECT_THROW(uneven_shard(options, {2, 0}, 0, 0), std::invalid_argument);
  EXPECT_THROW(uneven_shard(options, {1, 1}, 0, -1), std::invalid_argument);
  options.pad = false;
  EXPECT_THROW(uneven_shard(options, {1, 1}, 0, 0), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::data
