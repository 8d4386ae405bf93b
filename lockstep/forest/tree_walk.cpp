#include "lockstep/forest/tree_walk.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/forest/binning.h"
#include "lockstep/forest/random.h"

namespace lockstep::forest {
namespace {

constexpr size_t kInterleave = 16;  // walks under way at once, in registers

// Where each node goes. Slots 0 and 1 are the root's; children stay side by
// side: first pairs of two splits, then mixed ones, then pairs of leaves.
struct Layout {
  std::vector<uint32_t> slots;  // by node
  uint32_t first_leaf = 0;
  uint32_t count = 0;
};

constexpr uint32_t kNone = ~uint32_t{0};

uint64_t hash_of(const float* values, size_t count) {
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    hash = mix(hash ^ std::bit_cast<uint32_t>(values[i]));
  }
  return hash;
}

Layout lay_out(const Tree& tree) {
  const auto leaves = [&](uint32_t pair) {
    return (tree.nodes[pair].feature == kLeaf ? 1 : 0) +
           (tree.nodes[pair + 1].feature == kLeaf ? 1 : 0);
  };
  std::vector<uint32_t> level;  // splits, level after level
  uint32_t next[3] = {2, 0, 0};
  const auto visit = [&](uint32_t node) {
    if (tree.nodes[node].feature != kLeaf) {
      level.push_back(node);
    }
  };
  level.reserve(tree.nodes.size() / 2 + 1);
  visit(0);
  uint32_t pairs[3] = {};
  for (size_t i = 0; i < level.size(); ++i) {
    const uint32_t link = tree.nodes[level[i]].link;
    ++pairs[leaves(link)];
    visit(link);
    visit(link + 1);
  }
  Layout layout;
  next[1] = next[0] + 2 * pairs[0];
  next[2] = next[1] + 2 * pairs[1];
  layout.count = next[2] + 2 * pairs[2];
  layout.first_leaf = level.empty() ? 0 : next[1];
  layout.slots.resize(tree.nodes.size());
  for (const uint32_t node : level) {
    const uint32_t link = tree.nodes[node].link;
    uint32_t& slot = next[leaves(link)];
    layout.slots[link] = slot;
    layout.slots[link + 1] = slot + 1;
    slot += 2;
  }
  return layout;
}

template <class Step>
std::vector<Step> steps_of(const Tree& tree, const Layout& layout) {
  std::vector<Step> steps(layout.count);
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    const bool leaf = node.feature == kLeaf;
    Step& step = steps[layout.slots[i]];
    step.feature = static_cast<decltype(step.feature)>(leaf ? 0 : node.feature);
    step.bin = static_cast<decltype(step.bin)>(leaf ? kMaxBins - 1 : node.bin);
    step.left = static_cast<decltype(step.left)>(
        leaf ? layout.slots[i] : layout.slots[node.link]);
  }
  return steps;
}

template <class Step>
TopLevels top_of(
    const std::vector<Step>& steps,
    std::vector<uint32_t>& starts) {
  TopLevels top;
  std::vector<uint32_t> at(2 * top.nodes.size() + 1);  // slot of each place
  for (size_t i = 0; i < top.nodes.size(); ++i) {
    const Step& step = steps[at[i]];
    const bool leaf = step.left == at[i];
    top.nodes[i] = {step.feature, static_cast<uint8_t>(step.bin)};
    at[2 * i + 1] = step.left;
    at[2 * i + 2] = leaf ? step.left : step.left + 1;
  }
  starts.assign(at.begin() + top.nodes.size(), at.end());
  return top;
}

// The place of each leaf's value in `values`, where equal ones are kept once.
template <class Place>
std::vector<Place> places_of(
    const Tree& tree,
    const Layout& layout,
    size_t width,
    std::vector<float>& values) {
  const size_t bytes = width * sizeof(float);
  const size_t leaves = tree.nodes.size() / 2 + 1;
  std::vector<uint32_t> table(std::bit_ceil(2 * leaves), kNone);  // by hash
  std::vector<Place> places(layout.count - layout.first_leaf);
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    if (tree.nodes[i].feature != kLeaf) {
      continue;
    }
    const float* value =
        tree.values.data() + size_t{tree.nodes[i].link} * width;
    size_t at = hash_of(value, width) & (table.size() - 1);
    while (table[at] != kNone &&
           std::memcmp(values.data() + table[at] * width, value, bytes) != 0) {
      at = (at + 1) & (table.size() - 1);
    }
    if (table[at] == kNone) {
      table[at] = static_cast<uint32_t>(values.size() / width);
      values.insert(values.end(), value, value + width);
    }
    places[layout.slots[i] - layout.first_leaf] = static_cast<Place>(table[at]);
  }
  return places;
}

template <class Place>
void look_up(const Place* table, size_t rows, uint32_t* places) {
  for (size_t i = 0; i < rows; ++i) {
    places[i] = table[places[i]];
  }
}

// Into the core's second cache.
template <class T>
void prefetch_part(const std::vector<T>& values, size_t part, size_t parts) {
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  const size_t size = values.size() * sizeof(T);
  constexpr size_t kLine = 64;
  const size_t last = size * (part + 1) / parts;
  for (size_t at = size * part / parts; at < last; at += kLine) {
    __builtin_prefetch(bytes + at, 0, 2);
  }
}

// Walks on from `nodes`, a few rows at once. kStride 0: the block's.
template <size_t kStride, class Step>
void walk_rows(
    const Step* steps,
    int levels,
    const BinBlock& block,
    uint32_t* nodes) {
  const size_t stride = kStride == 0 ? block.stride() : kStride;
  for (size_t i = 0; i < block.rows(); i += kInterleave) {
    const uint8_t* own = block.row(i);
    uint32_t at[kInterleave];
    std::copy_n(nodes + i, kInterleave, at);
    for (int level = 0; level < levels; ++level) {
#pragma GCC unroll 16
      for (size_t j = 0; j < kInterleave; ++j) {
        const Step step = steps[at[j]];
        at[j] = step.left + (own[j * stride + step.feature] > step.bin);
      }
    }
    std::copy_n(at, kInterleave, nodes + i);
  }
}

template <class Step>
void walk_block(
    const Step* steps,
    int levels,
    const BinBlock& block,
    uint32_t* nodes) {
  switch (block.stride()) {
    case 16:
      return walk_rows<16>(steps, levels, block, nodes);
    case 32:
      return walk_rows<32>(steps, levels, block, nodes);
    case 64:
      return walk_rows<64>(steps, levels, block, nodes);
    default:
      return walk_rows<0>(steps, levels, block, nodes);
  }
}

}  // namespace

TreeWalk::TreeWalk(const Tree& tree, size_t num_features, size_t value_width) {
  const Layout layout = lay_out(tree);
  first_leaf_ = layout.first_leaf;
  levels_ = std::max(0, tree.depth - kTopLevels);
  if (num_features <= 256 && layout.count <= 65536) {
    short_steps_ = steps_of<Short>(tree, layout);
    top_ = top_of(short_steps_, starts_);
    short_places_ = places_of<uint16_t>(tree, layout, value_width, values_);
  } else {
    long_steps_ = steps_of<Long>(tree, layout);
    top_ = top_of(long_steps_, starts_);
    long_places_ = places_of<uint32_t>(tree, layout, value_width, values_);
  }
}

void TreeWalk::prefetch(size_t part, size_t parts) const {
  prefetch_part(short_steps_, part, parts);
  prefetch_part(long_steps_, part, parts);
  prefetch_part(short_places_, part, parts);
  prefetch_part(long_places_, part, parts);
  prefetch_part(values_, part, parts);
}

void TreeWalk::walk(
    const BinBlock& block,
    const TreeWalk& next,
    uint32_t* places) const {
  const size_t tiles = (block.rows() + BinBlock::kTile - 1) / BinBlock::kTile;
  for (size_t i = 0; i < block.rows(); i += BinBlock::kTile) {
    next.prefetch(i / BinBlock::kTile, tiles);
    uint8_t top[BinBlock::kTile];
    walk_top(top_, block.tile(i / BinBlock::kTile), top);
    for (size_t j = 0; j < BinBlock::kTile; ++j) {
      places[i + j] = starts_[top[j]];
    }
  }
  if (short_steps_.empty()) {
    walk_block(long_steps_.data(), levels_, block, places);
    look_up(long_places_.data() - first_leaf_, block.rows(), places);
  } else {
    walk_block(short_steps_.data(), levels_, block, places);
    look_up(short_places_.data() - first_leaf_, block.rows(), places);
  }
}

}  // namespace lockstep::forest
