#pragma once

// Random numbers that depend on what they are for and on nothing else: the
// draw of a row is a function of (seed, tree, row), the features of a node of
// its path from the root. So no thread, rank or order can change a model.

#include <array>
#include <cstdint>

namespace lockstep::forest {

// The finaliser of splitmix64: every bit of the input moves every bit out.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t tree_key(uint64_t seed, uint64_t tree) {
  return mix(mix(seed) + tree);
}
inline uint64_t child_key(uint64_t parent, bool right) {
  return mix(parent ^ (right ? 0xd1b54a32d192ed03 : 0x8cb92ba72f3d8dd7));
}

// How often a row is drawn for a tree: Poisson of the expected share, which is
// what drawing rows with replacement tends to, and needs no list of draws.
class Draws {
 public:
  Draws(uint64_t key, bool bootstrap, double share);
  uint32_t count(uint64_t row) const {
    if (!bootstrap_) {
      return 1;
    }
    const auto u = static_cast<uint32_t>(mix(key_ + row * kStep) >> 32);
    uint32_t count = 0;
    for (const uint32_t limit : limits_) {
      count += u >= limit;
    }
    return count;
  }

 private:
  static constexpr uint64_t kStep = 0xda942042e4dd58b5;
  uint64_t key_;
  bool bootstrap_;
  std::array<uint32_t, 12> limits_{};  // of the cumulative distribution
};

// Draws features without repetition, in an order given by a node's key.
class FeatureDraw {
 public:
  explicit FeatureDraw(uint64_t key) : state_(key) {}
  // Below `bound`.
  uint64_t below(uint64_t bound) {
    state_ = mix(state_);
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(state_) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace lockstep::forest
