#include "lockstep/forest/gather.h"

#include <algorithm>

namespace lockstep::forest {

using collective::DataType;
using collective::ReduceOp;

Gathered gather_bytes(std::string_view own, collective::Communicator& group) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto rank = static_cast<size_t>(group.rank());
  std::vector<int64_t> sizes(ranks);
  sizes[rank] = static_cast<int64_t>(own.size());
  if (ranks > 1) {
    group.all_gather(sizes.data(), 1, DataType::kInt64);
  }
  const auto largest =
      static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  // The group's own memory: the others write there, and nothing is copied once
  // more. It is zeros, and what follows a shorter part is sent with it.
  auto buffer = group.allocate(largest * ranks);
  char* const blocks = static_cast<char*>(buffer.data());
  std::copy(own.begin(), own.end(), blocks + rank * largest);
  if (largest > 0 && ranks > 1) {
    group.all_gather(blocks, largest, DataType::kUint8);
  }
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < ranks; ++i) {
    parts.emplace_back(blocks + i * largest, static_cast<size_t>(sizes[i]));
  }
  return {std::move(buffer), std::move(parts)};
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
