#pragma once

// Bytes of different length from every rank to every rank, over a
// communicator that moves equal blocks. Throws CollectiveError.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::forest {

// What each rank gave, by rank; the views live as long as this does.
class Gathered {
 public:
  Gathered(collective::Buffer bytes, std::vector<std::string_view> parts)
      : bytes_(std::move(bytes)), parts_(std::move(parts)) {}
  auto begin() const { return parts_.begin(); }
  auto end() const { return parts_.end(); }
  size_t size() const { return parts_.size(); }
  std::string_view operator[](size_t rank) const { return parts_[rank]; }

 private:
  collective::Buffer bytes_;
  std::vector<std::string_view> parts_;
};

Gathered gather_bytes(std::string_view own, collective::Communicator& group);

int64_t sum_over_ranks(int64_t value, collective::Communicator& group);
int64_t largest_of_ranks(int64_t value, collective::Communicator& group);
void sum_over_ranks(
    std::vector<double>& values,
    collective::Communicator& group);

}  // namespace lockstep::forest
