#include "lockstep/forest/histograms_fit.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "lockstep/forest/features.h"
#include "lockstep/forest/gather.h"
#include "lockstep/forest/grower.h"
#include "lockstep/forest/histogram.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/small_nodes.h"
#include "lockstep/forest/task.h"
#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

using collective::Communicator;
using collective::DataType;
using collective::ReduceOp;

// The trees of one batch, grown level by level on all ranks at once. Whatever
// decides (counts of nodes, sums of histograms) is equal on all ranks.
template <class Task>
class Batch {
 public:
  using Cell = typename Task::Cell;

  Batch(
      const BinnedTable& table,
      const Task& task,
      const FitOptions& options,
      Communicator& group)
      : table_(table),
        task_(task),
        options_(options),
        group_(group),
        per_split_(features_per_split(options, table.num_features)) {}

  std::vector<Tree> grow(size_t first, size_t count, const Target& target) {
    start(first, count);
    while (!open_.empty()) {
      round();
    }
    auto subtrees =
        finish_small_nodes(small_, table_, target, options_, group_);
    for (size_t i = 0; i < small_.size(); ++i) {
      graft(subtrees[i], trees_[small_[i].tree], small_[i].slot);
    }
    for (auto& tree : trees_) {
      tree = in_order(tree, static_cast<int>(task_.value_width()));
    }
    return std::move(trees_);
  }

 private:
  struct Open {
    size_t tree = 0;
    uint32_t slot = 0;
    uint64_t key = 0;
    int depth = 0;
    uint32_t begin = 0;  // of the tree's rows here
    uint32_t end = 0;
    std::vector<Cell> total{};  // over all ranks
  };
  struct Chosen {
    Split split;
    std::vector<Cell> left;
  };

  void start(size_t first, size_t count) {
    trees_.assign(count, Tree{});
    draws_.resize(count);
    open_.resize(count);
    const size_t width = task_.width();
    std::vector<Cell> totals(count * width);
    for_pieces(count, options_.threads, [&](size_t i, size_t) {
      const uint64_t key = tree_key(options_.seed, first + i);
      const Draws draws(key, options_.bootstrap, options_.sample);
      auto& own = draws_[i];
      own.counts.resize(table_.num_rows);
      for (size_t row = 0; row < table_.num_rows; ++row) {
        const uint32_t drawn = draws.count(table_.first_row + row);
        own.counts[row] = static_cast<uint8_t>(drawn);
        if (drawn != 0) {
          own.rows.push_back(static_cast<uint32_t>(row));
          Task::add(
              totals.data() + i * width, 0, width, table_.targets[row], drawn);
        }
      }
      trees_[i].nodes.resize(1);
      const auto rows = static_cast<uint32_t>(own.rows.size());
      open_[i] = {i, 0, key, 0, 0, rows};
    });
    reduce(totals.data(), totals.size());
    for (size_t i = 0; i < count; ++i) {
      const auto* from = totals.data() + i * width;
      open_[i].total.assign(from, from + width);
    }
  }

  Block block(size_t tree) const {
    return {
        table_.bins.data(), table_.targets.data(), draws_[tree].counts.data()};
  }

  void reduce(Cell* cells, size_t count) {
    constexpr auto kType =
        sizeof(Cell) == 4 ? DataType::kInt32 : DataType::kInt64;
    group_.all_reduce(cells, count, kType, ReduceOp::kSum);
  }

  // Every open node becomes a leaf, moves to one rank, or is split.
  void round() {
    std::vector<Open> large;
    for (auto& node : open_) {
      const uint64_t drawn = task_.drawn(node.total.data());
      if (!may_split(node, drawn)) {
        make_leaf(node);
      } else if (drawn <= static_cast<uint64_t>(options_.local_rows)) {
        auto& own = draws_[node.tree];
        small_.push_back(
            {node.tree,
             node.slot,
             node.key,
             node.depth,
             drawn,
             {own.rows.data() + node.begin, own.rows.data() + node.end},
             own.counts.data()});
      } else {
        large.push_back(std::move(node));
      }
    }
    open_.clear();
    const size_t each = per_split_ * kMaxBins * task_.width() * sizeof(Cell);
    const size_t most = std::max<size_t>(1, options_.memory / 4 / each);
    for (size_t at = 0; at < large.size(); at += most) {
      split(std::span(large).subspan(at, std::min(most, large.size() - at)));
    }
  }

  bool may_split(const Open& node, uint64_t drawn) const {
    return (options_.depth == 0 || node.depth < options_.depth) &&
           drawn >= static_cast<uint64_t>(options_.min_split) &&
           !task_.pure(node.total.data());
  }

  void make_leaf(const Open& node) {
    Tree& tree = trees_[node.tree];
    Node leaf;
    leaf.link = static_cast<uint32_t>(tree.values.size() / task_.value_width());
    task_.value(node.total.data(), tree.values);
    tree.nodes[node.slot] = leaf;
  }

  void split(std::span<const Open> nodes) {
    const size_t width = task_.width();
    const size_t apart = kMaxBins * width;
    std::vector<std::vector<int>> orders(nodes.size());
    if (buffer_.bytes() < nodes.size() * per_split_ * apart * sizeof(Cell)) {
      buffer_ =
          group_.allocate(nodes.size() * per_split_ * apart * sizeof(Cell));
    }
    auto* cells = static_cast<Cell*>(buffer_.data());
    for_pieces(nodes.size(), options_.threads, [&](size_t i, size_t) {
      FeatureOrder order(table_.num_features);
      order.start(nodes[i].key);
      while (order.more()) {
        orders[i].push_back(order.next());
      }
      Cell* own = cells + i * per_split_ * apart;
      std::fill_n(own, per_split_ * apart, Cell{0});
      fill(nodes[i], std::span(orders[i]).first(per_split_), own);
    });
    reduce(cells, nodes.size() * per_split_ * apart);
    std::vector<Chosen> chosen(nodes.size());
    std::vector<char> found(nodes.size());
    std::vector<Task> tasks(
        static_cast<size_t>(std::max(1, options_.threads)), task_);
    for_pieces(nodes.size(), options_.threads, [&](size_t i, size_t thread) {
      for (size_t f = 0; f < per_split_; ++f) {
        found[i] |= Histograms<Task>::scan_all(
            cells + (i * per_split_ + f) * apart,
            tasks[thread],
            nodes[i].total.data(),
            orders[i][f],
            chosen[i].split,
            chosen[i].left,
            width);
      }
    });
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t f = per_split_; f < orders[i].size() && !found[i]; ++f) {
        found[i] = look_at(nodes[i], orders[i][f], chosen[i]);
      }
      finish(nodes[i], chosen[i]);
    }
  }

  void fill(const Open& node, std::span<const int> features, Cell* cells) {
    const auto& rows = draws_[node.tree].rows;
    add_rows<Task>(
        block(node.tree),
        std::span(rows).subspan(node.begin, node.end - node.begin),
        table_.num_features,
        features,
        cells,
        kMaxBins * task_.width(),
        task_.width());
  }

  // One more feature: those that were drawn are constant in this node.
  bool look_at(const Open& node, int feature, Chosen& chosen) {
    std::vector<Cell> cells(kMaxBins * task_.width());
    fill(node, std::span(&feature, 1), cells.data());
    reduce(cells.data(), cells.size());
    return Histograms<Task>::scan_all(
        cells.data(),
        task_,
        node.total.data(),
        feature,
        chosen.split,
        chosen.left,
        task_.width());
  }

  void finish(const Open& node, const Chosen& chosen) {
    const double before = task_.score(node.total.data());
    const double gain = chosen.split.score - before;
    if (chosen.split.feature < 0 || !task_.worth(gain, before)) {
      make_leaf(node);
      return;
    }
    Tree& tree = trees_[node.tree];
    const auto link = static_cast<uint32_t>(tree.nodes.size());
    tree.nodes[node.slot] = {
        chosen.split.feature,
        chosen.split.bin,
        link,
        static_cast<float>(std::max(0., gain))};
    tree.nodes.resize(tree.nodes.size() + 2);
    auto& rows = draws_[node.tree].rows;
    const auto middle = std::stable_partition(
        rows.begin() + node.begin, rows.begin() + node.end, [&](uint32_t row) {
          return table_.bins
                     [row * table_.num_features +
                      static_cast<size_t>(chosen.split.feature)] <=
                 chosen.split.bin;
        });
    const auto cut = static_cast<uint32_t>(middle - rows.begin());
    std::vector<Cell> right(node.total);
    for (size_t i = 0; i < right.size(); ++i) {
      right[i] -= chosen.left[i];
    }
    const std::vector<Cell> left(
        chosen.left.begin(),
        chosen.left.begin() + static_cast<int64_t>(right.size()));
    open_.push_back(
        {node.tree,
         link,
         child_key(node.key, false),
         node.depth + 1,
         node.begin,
         cut,
         left});
    open_.push_back(
        {node.tree,
         link + 1,
         child_key(node.key, true),
         node.depth + 1,
         cut,
         node.end,
         right});
  }

  static void graft(const Tree& from, Tree& to, uint32_t slot) {
    const auto nodes = static_cast<uint32_t>(to.nodes.size()) - 1;
    const size_t width = from.values.empty() ? 1 : from_width(from);
    const auto values = static_cast<uint32_t>(to.values.size() / width);
    for (size_t i = 0; i < from.nodes.size(); ++i) {
      Node node = from.nodes[i];
      node.link += node.feature == kLeaf ? values : nodes;
      if (i == 0) {
        to.nodes[slot] = node;
      } else {
        to.nodes.push_back(node);
      }
    }
    to.values.insert(to.values.end(), from.values.begin(), from.values.end());
  }
  static size_t from_width(const Tree& tree) {
    const auto leaves = std::count_if(
        tree.nodes.begin(), tree.nodes.end(), [](const Node& node) {
          return node.feature == kLeaf;
        });
    return tree.values.size() / static_cast<size_t>(leaves);
  }

  struct TreeDraws {
    std::vector<uint8_t> counts;
    std::vector<uint32_t> rows;  // drawn here, those of a node side by side
  };
  const BinnedTable& table_;
  Task task_;
  const FitOptions& options_;
  Communicator& group_;
  size_t per_split_;
  std::vector<TreeDraws> draws_;
  std::vector<Tree> trees_;
  std::vector<Open> open_;
  std::vector<SmallNode> small_;
  collective::Buffer buffer_;
};

}  // namespace

std::vector<Tree> grow_from_histograms(
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group,
    const Progress& progress) {
  const auto trees = static_cast<size_t>(options.trees);
  const auto rows = static_cast<size_t>(
      largest_of_ranks(static_cast<int64_t>(table.num_rows), group));
  const size_t batch = std::clamp<size_t>(
      options.memory / 4 / (5 * std::max<size_t>(1, rows)), 1, trees);
  std::vector<Tree> result;
  while (result.size() < trees) {
    const size_t count = std::min(batch, trees - result.size());
    auto some = with_task(target, options, [&](auto task) {
      return Batch<decltype(task)>(table, task, options, group)
          .grow(result.size(), count, target);
    });
    std::move(some.begin(), some.end(), std::back_inserter(result));
    if (progress) {
      progress(count);
    }
  }
  return result;
}

}  // namespace lockstep::forest
