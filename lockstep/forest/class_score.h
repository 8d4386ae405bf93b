#pragma once

// How pure a node is, by its counts of classes. The score is the sum of a term
// for each class less that of their mass; larger is purer. Four classes are
// summed at a time, always in the same order, so that packed and wide counts
// give the same bits. Header-only because growing a tree is these lines.
// Thread-safe.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/forest/entropy_table.h"

namespace lockstep::forest {

template <bool kEntropy, bool kWeighted>
class ClassScore {
 public:
  // `weights`: one for each class, filled up to whole fours.
  explicit ClassScore(std::vector<double> weights)
      : weights_(std::move(weights)) {}

  // The score of counts of 16 bits, four a word; their sum is below 2^16.
  template <size_t kWords>
  double score_packed(const uint64_t* words) const {
    double terms = 0;
    double mass = 0;
    uint64_t drawn = 0;
    for (size_t w = 0; w < kWords; ++w) {
      const uint64_t x = words[w];
      add_four<true>(
          4 * w,
          x & 0xffff,
          (x >> 16) & 0xffff,
          (x >> 32) & 0xffff,
          x >> 48,
          terms,
          mass);
      drawn += (x * 0x0001000100010001) >> 48;
    }
    return side<true>(terms, mass, drawn);
  }
  // The score of counts that are filled up to whole fours.
  double score_wide(const std::vector<uint32_t>& counts) const {
    double terms = 0;
    double mass = 0;
    uint64_t drawn = 0;
    for (size_t c = 0; c < counts.size(); c += 4) {
      add_four<false>(
          c,
          counts[c],
          counts[c + 1],
          counts[c + 2],
          counts[c + 3],
          terms,
          mass);
      drawn +=
          uint64_t{counts[c]} + counts[c + 1] + counts[c + 2] + counts[c + 3];
    }
    return side<false>(terms, mass, drawn);
  }
  // How much `n` rows of class `c` count.
  double weighted(size_t c, uint64_t n) const {
    return kWeighted ? weights_[c] * static_cast<double>(n)
                     : static_cast<double>(n);
  }

 private:
  template <bool kSmall>
  void add_four(
      size_t c,
      uint64_t n0,
      uint64_t n1,
      uint64_t n2,
      uint64_t n3,
      double& terms,
      double& mass) const {
    terms += (term<kSmall>(c, n0) + term<kSmall>(c + 1, n1)) +
             (term<kSmall>(c + 2, n2) + term<kSmall>(c + 3, n3));
    if constexpr (kWeighted) {
      mass += (weighted(c, n0) + weighted(c + 1, n1)) +
              (weighted(c + 2, n2) + weighted(c + 3, n3));
    }
  }
  template <bool kSmall>
  double term(size_t c, uint64_t n) const {
    if constexpr (kEntropy && !kWeighted) {
      return kSmall ? table_.small(n) : table_.any(n);
    } else {
      const double mass = weighted(c, n);
      return kEntropy ? (mass > 0 ? mass * std::log2(mass) : 0) : mass * mass;
    }
  }
  template <bool kSmall>
  double side(double terms, double mass, uint64_t drawn) const {
    if constexpr (kEntropy && !kWeighted) {
      return terms - (kSmall ? table_.small(drawn) : table_.any(drawn));
    } else {
      mass = kWeighted ? mass : static_cast<double>(drawn);
      if (mass <= 0) {
        return 0;
      }
      return kEntropy ? terms - mass * std::log2(mass) : terms / mass;
    }
  }

  std::vector<double> weights_;
  EntropyTable table_;
};

}  // namespace lockstep::forest
