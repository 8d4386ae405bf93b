#pragma once

// Bytes of different length from every rank to every rank, over a
// communicator that moves equal blocks. Throws CollectiveError.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::forest {

// What each rank gave, by rank.
std::vector<std::string> gather_bytes(
    const std::string& own,
    collective::Communicator& group);

int64_t sum_over_ranks(int64_t value, collective::Communicator& group);
int64_t largest_of_ranks(int64_t value, collective::Communicator& group);
void sum_over_ranks(
    std::vector<double>& values,
    collective::Communicator& group);

}  // namespace lockstep::forest
