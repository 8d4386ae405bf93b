#include "lockstep/forest/grower.h"

#include <algorithm>
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

// A node whose rows fit in so many bytes is copied together once, and what is
// below it then reads the cache of the core instead of the whole table.
constexpr size_t kCompactBytes = 96 << 10;

template <class Task>
class TaskGrower : public Grower {
 public:
  using Cell = typename Task::Cell;

  TaskGrower(Task task, const FitOptions& options, size_t num_features)
      : task_(std::move(task)),
        options_(options),
        num_features_(num_features),
        per_split_(features_per_split(options, num_features)),
        compact_rows_(kCompactBytes / (num_features + 5)),
        order_(num_features),
        histograms_(task_.width()) {}

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
    grow_below(block, rows.data(), root, rows.size() <= 1);
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

  // The item's counts lie on top of stats_. `compact`: the block is small.
  void grow_below(const Block& block, uint32_t* rows, Item root, bool compact) {
    const size_t base = stack_.size();
    stack_.push_back(root);
    while (stack_.size() > base) {
      const Item item = stack_.back();
      stack_.pop_back();
      if (!compact && item.end - item.begin <= compact_rows_) {
        grow_compact(block, rows, item);
      } else {
        grow_node(block, rows, item);
      }
    }
  }

  void grow_compact(const Block& block, const uint32_t* rows, Item item) {
    const size_t count = item.end - item.begin;
    near_bins_.resize(count * num_features_);
    near_targets_.resize(count);
    near_counts_.resize(count);
    near_rows_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t row = rows[item.begin + i];
      std::memcpy(
          near_bins_.data() + i * num_features_,
          block.bins + size_t{row} * num_features_,
          num_features_);
      near_targets_[i] = block.targets[row];
      near_counts_[i] = block.counts[row];
      near_rows_[i] = static_cast<uint32_t>(i);
    }
    item.begin = 0;
    item.end = static_cast<uint32_t>(count);
    grow_below(
        {near_bins_.data(), near_targets_.data(), near_counts_.data()},
        near_rows_.data(),
        item,
        true);
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
  size_t compact_rows_;
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
  std::vector<uint8_t> near_bins_;
  std::vector<int32_t> near_targets_;
  std::vector<uint8_t> near_counts_;
  std::vector<uint32_t> near_rows_;
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
