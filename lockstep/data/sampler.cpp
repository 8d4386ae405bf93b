#include "lockstep/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "lockstep/data/random.h"

namespace lockstep::data {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void validate(int64_t size, int rank, int world) {
  if (size < 0 || world < 1 || rank < 0 || rank >= world) {
    throw std::invalid_argument(
        fmt::format(
            "no shard for rank {} of {} over {} samples", rank, world, size));
  }
}

// How many of the `count` samples of a short batch come before rank `rank`:
// one for each rank, the others in proportion to what shares have above one.
int64_t cut(const std::vector<int64_t>& shares, int64_t count, size_t rank) {
  const auto world = static_cast<int64_t>(shares.size());
  const auto whole =
      std::accumulate(shares.begin(), shares.end(), int64_t{0}) - world;
  const auto before = std::accumulate(
                          shares.begin(),
                          shares.begin() + static_cast<std::ptrdiff_t>(rank),
                          int64_t{0}) -
                      static_cast<int64_t>(rank);
  return static_cast<int64_t>(rank) +
         (whole > 0 ? (count - world) * before / whole : 0);
}

}  // namespace

std::vector<int64_t> permutation(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  const uint64_t key = stream_key(seed, static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[below(stream_value(key, i), i)]);
  }
  return order;
}

int64_t shard_size(const ShardOptions& options) {
  validate(options.size, options.rank, options.world);
  if (options.pad) {
    return ceil_div(options.size, options.world);
  }
  return ceil_div(
      std::max<int64_t>(options.size - options.rank, 0), options.world);
}

std::vector<int64_t> shard(const ShardOptions& options, int64_t epoch) {
  const int64_t count = shard_size(options);
  std::vector<int64_t> order;
  if (options.shuffle) {
    order = permutation(options.size, options.seed, epoch);
  }
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // Past the end lies the padding: the order again, from its front.
    const int64_t at = (options.rank + i * options.world) % options.size;
    indices[static_cast<size_t>(i)] =
        options.shuffle ? order[static_cast<size_t>(at)] : at;
  }
  return indices;
}

std::vector<int64_t> uneven_shard(
    const ShardOptions& options,
    const std::vector<int64_t>& shares,
    int64_t epoch,
    int64_t first) {
  validate(options.size, options.rank, options.world);
  const bool good =
      shares.size() == static_cast<size_t>(options.world) &&
      std::all_of(shares.begin(), shares.end(), [](int64_t share) {
        return share > 0;
      });
  if (!good || !options.pad || first < 0) {
    throw std::invalid_argument(
        "uneven shards need a share above 0 for each rank, and padding");
  }
  const int64_t batch =
      std::accumulate(shares.begin(), shares.end(), int64_t{0});
  const int64_t padded = shard_size(options) * options.world;
  std::vector<int64_t> order;
  if (options.shuffle) {
    order = permutation(options.size, options.seed, epoch);
  }
  const auto rank = static_cast<size_t>(options.rank);
  std::vector<int64_t> indices;
  for (int64_t begin = first * batch; begin < padded; begin += batch) {
    const int64_t count = std::min(batch, padded - begin);
    const int64_t end = begin + cut(shares, count, rank + 1);
    for (int64_t i = begin + cut(shares, count, rank); i < end; ++i) {
      const int64_t at = i % options.size;
      indices.push_back(options.shuffle ? order[static_cast<size_t>(at)] : at);
    }
  }
  return indices;
}

int64_t
batches_per_epoch(int64_t size, int world, int64_t batch, bool drop_last) {
  if (size < 0 || world < 1 || batch < 1) {
    throw std::invalid_argument(
        fmt::format(
            "no batches of {} over {} samples on {} ranks",
            batch,
            size,
            world));
  }
  const int64_t count = ceil_div(size, world);
  return drop_last ? count / batch : ceil_div(count, batch);
}

}  // namespace lockstep::data
