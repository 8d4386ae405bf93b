#include "lockstep/forest/gather.h"

#include <algorithm>
#include <cstring>

namespace lockstep::forest {

using collective::DataType;
using collective::ReduceOp;

std::vector<std::string> gather_bytes(
    const std::string& own,
    collective::Communicator& group) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto rank = static_cast<size_t>(group.rank());
  if (ranks == 1) {
    return {own};
  }
  std::vector<int64_t> sizes(ranks);
  sizes[rank] = static_cast<int64_t>(own.size());
  group.all_gather(sizes.data(), 1, DataType::kInt64);
  const auto largest =
      static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<uint8_t> blocks(largest * ranks);
  std::memcpy(blocks.data() + rank * largest, own.data(), own.size());
  if (largest > 0) {
    group.all_gather(blocks.data(), largest, DataType::kUint8);
  }
  std::vector<std::string> result;
  for (size_t i = 0; i < ranks; ++i) {
    result.emplace_back(
        reinterpret_cast<const char*>(blocks.data() + i * largest),
        static_cast<size_t>(sizes[i]));
  }
  return result;
}

int64_t sum_over_ranks(int64_t value, collective::Communicator& group) {
  group.all_reduce(&value, 1, DataType::kInt64, ReduceOp::kSum);
  return value;
}

int64_t largest_of_ranks(int64_t value, collective::Communicator& group) {
  group.all_reduce(&value, 1, DataType::kInt64, ReduceOp::kMax);
  return value;
}

void sum_over_ranks(
    std::vector<double>& values,
    collective::Communicator& group) {
  group.all_reduce(
      values.data(), values.size(), DataType::kFloat64, ReduceOp::kSum);
}

}  // namespace lockstep::forest
