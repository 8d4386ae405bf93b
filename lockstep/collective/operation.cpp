#include "lockstep/collective/operation.h"

#include <fmt/format.h>

#include <array>

namespace lockstep::collective {
namespace {

constexpr std::array kKindNames = {
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "barrier",
    "reduce",
    "all_gather in pieces",
    "reduce_scatter in pieces"};
constexpr std::array kTypeNames =
    {"float32", "bfloat16", "float64", "int32", "int64", "uint8"};
constexpr std::array kOpNames = {"sum", "min", "max"};
constexpr std::array<size_t, 6> kTypeSizes = {4, 2, 8, 4, 8, 1};

template <class Names>
const char* name_of(const Names& names, uint64_t index) {
  return index < names.size() ? names[index] : "unknown";
}

}  // namespace

Work Communicator::gather_pieces_async(
    const void*,
    void*,
    const Pieces&,
    DataType) {
  throw CollectiveError(name() + ": does not take pieces");
}

Work Communicator::scatter_pieces_async(
    const void*,
    void*,
    const Pieces&,
    DataType,
    ReduceOp) {
  throw CollectiveError(name() + ": does not take pieces");
}

size_t size_of(DataType type) {
  return kTypeSizes[static_cast<size_t>(type)];
}

size_t Operation::bytes(int size) const {
  const bool blocks = kind == Kind::kReduceScatter ||
                      kind == Kind::kAllGather || pieces != nullptr;
  return count * size_of(type) * (blocks ? static_cast<size_t>(size) : 1);
}

uint64_t Operation::signature() const {
  return static_cast<uint64_t>(kind) | static_cast<uint64_t>(type) << 8 |
         static_cast<uint64_t>(op) << 16 |
         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
}

std::string describe(const Operation& operation) {
  return describe(operation.signature(), operation.count);
}

std::string describe(uint64_t signature, uint64_t count) {
  const auto kind = static_cast<Kind>(signature & 0xff);
  std::string text = name_of(kKindNames, signature & 0xff);
  if (kind == Kind::kBarrier) {
    return text;
  }
  text += fmt::format(
      " of {} {}", count, name_of(kTypeNames, signature >> 8 & 0xff));
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter ||
      kind == Kind::kReduce || kind == Kind::kScatterPieces) {
    text += fmt::format(" ({})", name_of(kOpNames, signature >> 16 & 0xff));
  }
  if (kind == Kind::kBroadcast) {
    text += fmt::format(" from rank {}", signature >> 32);
  }
  return text;
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw CollectiveError(
        fmt::format(
            "broadcast from rank {}: the group has ranks 0 to {}",
            root,
            size - 1));
  }
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) {
      text += i + 1 == ranks.size() ? " and " : ", ";
    }
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace lockstep::collective
