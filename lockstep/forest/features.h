#pragma once

// Which features a node looks at: a random order given by the node's key, of
// which it takes the first few, and more only while none of those can split
// it. One owner, one thread; a draw costs the features taken, not all.

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/forest/random.h"

namespace lockstep::forest {

class FeatureOrder {
 public:
  explicit FeatureOrder(size_t num_features) : order_(num_features) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  void start(uint64_t key) {
    // Undone in reverse, so that every node shuffles the same list.
    while (taken_ > 0) {
      --taken_;
      std::swap(order_[taken_], order_[swaps_[taken_]]);
    }
    swaps_.clear();
    draw_ = FeatureDraw(key);
  }
  bool more() const { return taken_ < order_.size(); }
  int next() {
    const size_t at = taken_ + draw_.below(order_.size() - taken_);
    std::swap(order_[taken_], order_[at]);
    swaps_.push_back(at);
    return order_[taken_++];
  }

 private:
  std::vector<int> order_;
  std::vector<size_t> swaps_;
  size_t taken_ = 0;
  FeatureDraw draw_{0};
};

}  // namespace lockstep::forest
