#pragma once

// Stateless random numbers: value i of a stream is a hash of the stream's key
// and i, so any of them can be asked for in any order, on any thread and any
// machine, with equal results. The hash is the finaliser of splitmix64.

#include <cstdint>

namespace lockstep::data {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The key of a stream named by three numbers; order matters.
constexpr uint64_t
stream_key(uint64_t seed, uint64_t first, uint64_t second = 0) {
  return mix64(mix64(mix64(seed) ^ first) ^ second);
}

constexpr uint64_t stream_value(uint64_t key, uint64_t index) {
  return mix64(key + index * 0x9e3779b97f4a7c15ULL);
}

// Maps a random 64-bit value to [0, bound) by the high half of a product. The
// bias is below bound / 2^64.
constexpr uint64_t below(uint64_t value, uint64_t bound) {
  return static_cast<uint64_t>(
      (static_cast<unsigned __int128>(value) * bound) >> 64);
}

}  // namespace lockstep::data
