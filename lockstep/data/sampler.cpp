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
