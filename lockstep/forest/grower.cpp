#include "lockstep/forest/grower.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lockstep/forest/features.h"
#include "lockstep/forest/histogram.h"
#include "lockstep/forest/packed_histogram.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/task.h"

namespace lockstep::forest {
namespace {

// A node whose rows fit in so many bytes is copied together, and what is below
// it then reads one of the caches instead of the whole table: what all cores
// share, the core's second and its first. Without that the rows of a deep node
// are scattered over the table, and time grows faster than the rows.
constexpr std::array<size_t, 3> kNearBytes = {16 << 20, 512 << 10, 96 << 10};

template <class Task>
class TaskGrower : public Grower {
 public:
  using Cell = typename Task::Cell;

  TaskGrower(Task task, const FitOptions& options, size_t num_features)
      : task_(std::move(task)),
        options_(options),
        num_features_(num_features),
        per_split_(features_per_split(options, num_features)),
        order_(num_features),
        histograms_(task_.width()) {
    for (size_t i = 0; i < kNearBytes.size(); ++i) {
      near_[i].limit = kNearBytes[i] / (num_features + 5);
    }
  }

  Tree grow(
      const Block& block,
      std::span<uint32_t> rows,
      uint64_t key,
      int depth) override {
    tree_ = Tree{};
    tree_.nodes.resize(1);
    tree_.depth = depth;
    spare_.resize(std::max(spare_.size(), rows.size()));
    std::vector<Cell> stats(task_.width());
    for (const uint32_t row : rows) {
      Task::add(
          stats.data(), 0, stats.size(), block.targets[row], block.counts[row]);
    }
    stats_ = stats;
    const Item root = {0, static_cast<uint32_t>(rows.size()), key, depth, 0};
    grow_below(block, rows.data(), root, 0);
    return std::move(tree_);
  }

 private:
  struct Item {
    uint32_t begin;
    uint32_t end;
    uint64_t key;
    int depth;
    uint32_t slot;
  };

  // A copy of the rows of one node.
  struct Near {
    size_t limit = 0;  // rows
    std::vector<uint8_t> bins;
    std::vector<int32_t> targets;
    std::vector<uint8_t> counts;
    std::vector<uint32_t> rows;
  };

  // The item's counts lie on top of stats_. `copied`: how many of near_ are in
  // use above it.
  void
  grow_below(const Block& block, uint32_t* rows, Item root, size_t copied) {
    const size_t base = stack_.size();
    stack_.push_back(root);
    while (stack_.size() > base) {
      const Item item = stack_.back();
      stack_.pop_back();
      size_t fits = copied;
      while (fits < near_.size() &&
             item.end - item.begin <= near_[fits].limit) {
        ++fits;
      }
      if (fits > copied) {
        grow_near(block, rows, item, fits);
      } else {
        grow_node(block, rows, item);
      }
    }
  }

  void grow_near(
      const Block& block,
      const uint32_t* rows,
      Item item,
      size_t copied) {
    const std::span<const uint32_t> own(rows + item.begin, rows + item.end);
    Near& near = near_[copied - 1];
    near.bins.resize(std::max(near.bins.size(), own.size() * num_features_));
    near.targets.resize(std::max(near.targets.size(), own.size()));
    near.counts.resize(near.targets.size());
    near.rows.resize(near.targets.size());
    for (size_t i = 0; i < own.size(); ++i) {
      prefetch_row(block, own, i, num_features_);
      const uint32_t row = own[i];
      std::memcpy(
          near.bins.data() + i * num_features_,
          block.bins + size_t{row} * num_features_,
          num_features_);
      near.targets[i] = block.targets[row];
      near.counts[i] = block.counts[row];
      near.rows[i] = static_cast<uint32_t>(i);
    }
    item.begin = 0;
    item.end = static_cast<uint32_t>(own.size());
    grow_below(
        {near.bins.data(), near.targets.data(), near.counts.data()},
        near.rows.data(),
        item,
        copied);
  }

  void grow_node(const Block& block, uint32_t* rows, const Item& item) {
    total_.assign(
        stats_.end() - static_cast<int64_t>(task_.width()), stats_.end());
    stats_.resize(stats_.size() - task_.width());
    tree_.depth = std::max(tree_.depth, item.depth);
    Split best;
    const double before = task_.score(total_.data());
    if (may_split(item)) {
      best = find_split(block, rows, item);
    }
    Node node;
    if (best.feature < 0 || !task_.worth(best.score - before, before)) {
      node.link =
          static_cast<uint32_t>(tree_.values.size() / task_.value_width());
      task_.value(total_.data(), tree_.values);
      tree_.nodes[item.slot] = node;
      return;
    }
    node.feature = best.feature;
    node.bin = best.bin;
    node.gain = static_cast<float>(std::max(0., best.score - before));
    node.link = static_cast<uint32_t>(tree_.nodes.size());
    tree_.nodes[item.slot] = node;
    tree_.nodes.resize(tree_.nodes.size() + 2);
    const uint32_t middle = partition(block, rows, item, best);
    push(
        {middle,
         item.end,
         child_key(item.key, true),
         item.depth + 1,
         node.link + 1},
        false);
    push(
        {item.begin,
         middle,
         child_key(item.key, false),
         item.depth + 1,
         node.link},
        true);
  }

  void push(const Item& item, bool left) {
    stack_.push_back(item);
    for (size_t i = 0; i < task_.width(); ++i) {
      stats_.push_back(left ? left_of_best_[i] : total_[i] - left_of_best_[i]);
    }
  }

  bool may_split(const Item& item) const {
    return (options_.depth == 0 || item.depth < options_.depth) &&
           item.end - item.begin >= 2 &&
           task_.drawn(total_.data()) >=
               static_cast<uint64_t>(options_.min_split) &&
           !task_.pure(total_.data());
  }

  Split find_split(const Block& block, const uint32_t* rows, const Item& item) {
    if constexpr (Task::kPackable) {
      if (task_.drawn(total_.data()) < kPackedLimit) {
        if (task_.width() <= 4) {
          return find_split(packed_one_, block, rows, item);
        }
        if (task_.width() <= 8) {
          return find_split(packed_two_, block, rows, item);
        }
      }
    }
    return find_split(histograms_, block, rows, item);
  }

  template <class Filled>
  Split find_split(
      Filled& filled,
      const Block& block,
      const uint32_t* rows,
      const Item& item) {
    Split best;
    order_.start(item.key);
    const std::span<const uint32_t> own(rows + item.begin, rows + item.end);
    size_t looked = 0;
    bool found = false;
    while (order_.more() && (looked < per_split_ || !found)) {
      // Four at a time: a row's target and count are read once for them.
      int features[kTogether];
      size_t count = 0;
      const size_t wanted =
          looked < per_split_ ? std::min(kTogether, per_split_ - looked) : 1;
      while (count < wanted && order_.more()) {
        features[count++] = order_.next();
      }
      looked += count;
      filled.fill(block, own, num_features_, std::span(features, count));
      for (size_t i = 0; i < count; ++i) {
        found |= filled.scan(
            i, task_, total_.data(), features[i], best, left_of_best_);
      }
    }
    return best;
  }

  // Left rows first; order among them is kept.
  uint32_t partition(
      const Block& block,
      uint32_t* rows,
      const Item& item,
      const Split& split) {
    const uint8_t* column = block.bins + split.feature;
    uint32_t* spare = spare_.data();
    uint32_t left = item.begin;
    uint32_t right = 0;
    for (uint32_t i = item.begin; i < item.end; ++i) {
      if (i + kAhead < item.end) {
        __builtin_prefetch(column + size_t{rows[i + kAhead]} * num_features_);
      }
      const uint32_t row = rows[i];
      const bool goes_right = column[size_t{row} * num_features_] > split.bin;
      rows[left] = row;
      spare[right] = row;
      left += !goes_right;
      right += goes_right;
    }
    std::memcpy(rows + left, spare, right * sizeof(uint32_t));
    return left;
  }

  Task task_;
  FitOptions options_;
  size_t num_features_;
  size_t per_split_;
  FeatureOrder order_;
  Histograms<Task> histograms_;
  PackedHistograms<1> packed_one_;  // up to four classes
  PackedHistograms<2> packed_two_;  // up to eight
  Tree tree_;
  std::vector<Item> stack_;
  std::vector<Cell> stats_;
  std::vector<Cell> total_;
  std::vector<Cell> left_of_best_;
  std::vector<uint32_t> spare_;
  std::array<Near, kNearBytes.size()> near_;
};

}  // namespace

size_t features_per_split(const FitOptions& options, size_t num_features) {
  if (options.features_per_split > 0) {
    return std::min(
        static_cast<size_t>(options.features_per_split), num_features);
  }
  return std::max<size_t>(
      1, static_cast<size_t>(std::sqrt(static_cast<double>(num_features))));
}

std::unique_ptr<Grower> Grower::make(
    const Target& target,
    const FitOptions& options,
    size_t num_features) {
  return with_task(target, options, [&](auto task) -> std::unique_ptr<Grower> {
    return std::make_unique<TaskGrower<decltype(task)>>(
        std::move(task), options, num_features);
  });
}

}  // namespace lockstep::forest
