#include "lockstep/forest/small_nodes.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "lockstep/forest/gather.h"
#include "lockstep/forest/grower.h"
#include "lockstep/forest/threads.h"
#include "lockstep/forest/tree_bytes.h"

namespace lockstep::forest {
namespace {

// A row on its way: its bins, its target, how often it was drawn.
size_t row_bytes(const BinnedTable& table) {
  return table.num_features + sizeof(int32_t) + 1;
}

void put_rows(
    const SmallNode& node,
    const BinnedTable& table,
    std::string& bytes) {
  const auto count = static_cast<uint32_t>(node.rows.size());
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  for (const uint32_t row : node.rows) {
    bytes.append(
        reinterpret_cast<const char*>(
            table.bins.data() + row * table.num_features),
        table.num_features);
    bytes.append(
        reinterpret_cast<const char*>(&table.targets[row]), sizeof(int32_t));
    bytes.push_back(static_cast<char>(node.counts[row]));
  }
}

// The rows of one node, from all ranks.
struct NodeRows {
  std::vector<uint8_t> bins;
  std::vector<int32_t> targets;
  std::vector<uint8_t> counts;
};

NodeRows unpack(
    const std::vector<std::string_view>& parts,
    size_t num_features) {
  NodeRows result;
  const size_t each = num_features + sizeof(int32_t) + 1;
  for (const auto& part : parts) {
    for (size_t at = 0; at < part.size(); at += each) {
      const auto* row = reinterpret_cast<const uint8_t*>(part.data()) + at;
      int32_t target = 0;
      std::memcpy(&target, row + num_features, sizeof target);
      result.bins.insert(result.bins.end(), row, row + num_features);
      result.targets.push_back(target);
      result.counts.push_back(row[each - 1]);
    }
  }
  return result;
}

// The largest node first, always to the rank with the least so far.
std::vector<int> owners(std::span<const SmallNode> nodes, int ranks) {
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return nodes[a].drawn > nodes[b].drawn;
  });
  std::vector<uint64_t> load(static_cast<size_t>(ranks));
  std::vector<int> result(nodes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    result[i] = static_cast<int>(least - load.begin());
    *least += nodes[i].drawn;
  }
  return result;
}

// Where the rows of each node lie in what a rank sent.
std::vector<std::vector<std::string_view>>
parts_of_nodes(const Gathered& sent, size_t nodes, size_t each) {
  std::vector<std::vector<std::string_view>> result(nodes);
  for (std::string_view rest : sent) {
    for (size_t i = 0; i < nodes; ++i) {
      uint32_t count = 0;
      std::memcpy(&count, rest.data(), sizeof count);
      rest.remove_prefix(sizeof count);
      result[i].push_back(rest.substr(0, count * each));
      rest.remove_prefix(count * each);
    }
  }
  return result;
}

}  // namespace

std::vector<Tree> finish_small_nodes(
    std::span<const SmallNode> nodes,
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group) {
  const auto owner = owners(nodes, group.size());
  std::vector<Tree> result(nodes.size());
  std::vector<std::unique_ptr<Grower>> growers(
      static_cast<size_t>(std::max(1, options.threads)));
  const uint64_t budget = std::max<uint64_t>(
      1, options.memory / 4 / row_bytes(table));  // rows under way
  for (size_t first = 0; first < nodes.size();) {
    size_t last = first;
    uint64_t rows = 0;
    while (last < nodes.size() &&
           (last == first || rows + nodes[last].drawn <= budget)) {
      rows += nodes[last++].drawn;
    }
    std::string bytes;
    for (size_t i = first; i < last; ++i) {
      put_rows(nodes[i], table, bytes);
    }
    const auto sent = gather_bytes(bytes, group);
    const auto parts = parts_of_nodes(sent, last - first, row_bytes(table));
    for_pieces(last - first, options.threads, [&](size_t piece, size_t thread) {
      const size_t i = first + piece;
      if (owner[i] != group.rank()) {
        return;
      }
      auto& grower = growers[thread];
      if (!grower) {
        grower = Grower::make(target, options, table.num_features);
      }
      const auto own = unpack(parts[piece], table.num_features);
      std::vector<uint32_t> order(own.targets.size());
      std::iota(order.begin(), order.end(), 0);
      const Block block = {
          own.bins.data(), own.targets.data(), own.counts.data()};
      result[i] = grower->grow(block, order, nodes[i].key, nodes[i].depth);
    });
    first = last;
  }
  std::string grown;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (owner[i] == group.rank()) {
      put_tree(result[i], grown);
    }
  }
  const auto all = gather_bytes(grown, group);
  std::vector<std::string_view> rest(all.begin(), all.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    result[i] = take_tree(rest[static_cast<size_t>(owner[i])]);
  }
  return result;
}

}  // namespace lockstep::forest
