#pragma once

// The loop that turns numbers into bins: how many edges lie below each value.
// Pure; thread-safe. The instructions are chosen by the processor at the first
// use; all choices give the same bins.

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::forest {

// Whole rows of `num_features` values; of each feature `edges` has kMaxBins,
// ascending and filled up with infinity. `bins` gets a byte a value.
void encode_bins(
    std::span<const float> rows,
    const float* edges,
    size_t num_features,
    uint8_t* bins);

// The same for any processor; what the tests compare with.
void encode_bins_plain(
    std::span<const float> rows,
    const float* edges,
    size_t num_features,
    uint8_t* bins);

}  // namespace lockstep::forest
