#include "lockstep/forest/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

namespace lockstep::forest {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

template <class T>
record::TensorView view(
    const std::string& name,
    const std::string& dtype,
    std::vector<int64_t> shape,
    const std::vector<T>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

Error corrupt(const os::Path& path, const std::string& what) {
  return Error(
      ErrorCode::kCorrupt,
      fmt::format("{}: not a forest of lockstep: {}", path.string(), what));
}

template <class T>
Result<std::vector<T>> take(
    const record::SafetensorsFile& file,
    const os::Path& path,
    const std::string& name,
    const std::string& dtype) {
  const auto* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != dtype) {
    return corrupt(path, fmt::format("no tensor '{}' of type {}", name, dtype));
  }
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), tensor->bytes.data(), values.size() * sizeof(T));
  }
  return values;
}

// Shares of classes lie between 0 and 1, but for rounding; values are finite.
bool sound_values(const std::vector<float>& values, bool shares) {
  return std::all_of(values.begin(), values.end(), [&](float value) {
    return shares ? value >= 0 && value <= 1.0001F : std::isfinite(value);
  });
}

bool sound_edges(const std::vector<float>& edges) {
  const auto not_above = [](float a, float b) { return !(b > a); };
  return std::all_of(
             edges.begin(),
             edges.end(),
             [](float edge) { return std::isfinite(edge); }) &&
         std::adjacent_find(edges.begin(), edges.end(), not_above) ==
             edges.end();
}

// The threshold of a split is the edge that its bin ends at.
bool same_splits(
    const Tree& tree,
    std::span<const float> thresholds,
    const Binning& binning) {
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    if (node.feature != kLeaf &&
        binning.threshold(static_cast<size_t>(node.feature), node.bin) !=
            thresholds[i]) {
      return false;
    }
  }
  return true;
}

bool sound_leaf(const Tree& tree, const Node& node, size_t width) {
  return (size_t{node.link} + 1) * width <= tree.values.size();
}

bool sound_split(const Tree& tree, size_t at, size_t features) {
  const Node& node = tree.nodes[at];
  return node.feature >= 0 && static_cast<size_t>(node.feature) < features &&
         node.bin < kMaxBins && node.link > at &&
         size_t{node.link} + 1 < tree.nodes.size();
}

// Links go forward, so that a walk always ends, and each node but the root has
// one parent, so that what is sized by nodes holds all that a walk meets.
bool sound(const Tree& tree, size_t features, size_t width) {
  std::vector<bool> has_parent(tree.nodes.size());
  size_t children = 0;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    if (node.feature == kLeaf) {
      if (!sound_leaf(tree, node, width)) {
        return false;
      }
      continue;
    }
    if (!sound_split(tree, i, features) || has_parent[node.link] ||
        has_parent[node.link + 1]) {
      return false;
    }
    has_parent[node.link] = has_parent[node.link + 1] = true;
    children += 2;
  }
  return children + 1 == tree.nodes.size();
}

// Of a forest of numbers; older files have none, and their leaves are whole.
Result<double> read_offset(
    const record::Metadata& metadata,
    const os::Path& path) {
  const auto at = metadata.find("lockstep.offset");
  if (at == metadata.end()) {
    return 0.;
  }
  const std::string& text = at->second;
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(value)) {
    return corrupt(
        path, fmt::format("lockstep.offset is '{}', not a number", text));
  }
  return value;
}

int depth_of(const Tree& tree) {
  std::vector<int> depth(tree.nodes.size());
  int deepest = 0;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    deepest = std::max(deepest, depth[i]);
    if (const Node& node = tree.nodes[i]; node.feature != kLeaf) {
      depth[node.link] = depth[i] + 1;
      depth[node.link + 1] = depth[i] + 1;
    }
  }
  return deepest;
}

}  // namespace

Result<void> write_model(
    os::FileSystem& files,
    const os::Path& path,
    const Forest& forest,
    const record::Metadata& facts) {
  std::vector<int64_t> node_starts = {0};
  std::vector<int64_t> value_starts = {0};
  std::vector<int32_t> features;
  std::vector<uint8_t> bins;
  std::vector<uint32_t> links;
  std::vector<float> thresholds;
  std::vector<float> gains;
  std::vector<float> values;
  for (const auto& tree : forest.trees) {
    for (const auto& node : tree.nodes) {
      features.push_back(node.feature);
      bins.push_back(static_cast<uint8_t>(node.bin));
      links.push_back(node.link);
      gains.push_back(node.gain);
      thresholds.push_back(
          node.feature == kLeaf
              ? 0
              : forest.binning.threshold(
                    static_cast<size_t>(node.feature), node.bin));
    }
    values.insert(values.end(), tree.values.begin(), tree.values.end());
    node_starts.push_back(static_cast<int64_t>(features.size()));
    value_starts.push_back(
        static_cast<int64_t>(values.size()) / forest.value_width());
  }
  std::vector<int64_t> edge_starts = {0};
  std::vector<float> edges;
  for (size_t f = 0; f < forest.features.size(); ++f) {
    const auto& own = forest.binning.edges(f);
    edges.insert(edges.end(), own.begin(), own.end());
    edge_starts.push_back(static_cast<int64_t>(edges.size()));
  }
  const auto nodes = static_cast<int64_t>(features.size());
  const auto trees = static_cast<int64_t>(forest.trees.size()) + 1;
  record::Metadata metadata = facts;
  metadata["lockstep.recipe"] = "forest";
  metadata["lockstep.forest"] = std::to_string(kVersion);
  metadata["lockstep.features"] = json(forest.features).dump();
  metadata["lockstep.classes"] = json(forest.target.classes).dump();
  if (forest.target.classes.empty()) {
    metadata["lockstep.offset"] = fmt::format("{}", forest.target.offset);
  }
  return record::write_safetensors(
      files,
      path,
      {view("tree.node_start", "I64", {trees}, node_starts),
       view("tree.value_start", "I64", {trees}, value_starts),
       view("node.feature", "I32", {nodes}, features),
       view("node.bin", "U8", {nodes}, bins),
       view("node.threshold", "F32", {nodes}, thresholds),
       view("node.link", "U32", {nodes}, links),
       view("node.gain", "F32", {nodes}, gains),
       view(
           "leaf.value",
           "F32",
           {value_starts.back(), forest.value_width()},
           values),
       view(
           "bin.start",
           "I64",
           {static_cast<int64_t>(edge_starts.size())},
           edge_starts),
       view("bin.edge", "F32", {static_cast<int64_t>(edges.size())}, edges)},
      metadata);
}

Result<Forest> read_model(const os::Path& path) {
  LOCKSTEP_ASSIGN(const auto file, record::SafetensorsFile::open(path));
  const auto& metadata = file.metadata();
  const auto version = metadata.find("lockstep.forest");
  if (version == metadata.end()) {
    return corrupt(path, "no 'lockstep.forest' in its metadata");
  }
  if (version->second != std::to_string(kVersion)) {
    return corrupt(
        path,
        fmt::format(
            "version {}; this program reads {}", version->second, kVersion));
  }
  Forest forest;
  try {
    forest.features = json::parse(metadata.at("lockstep.features"))
                          .get<std::vector<std::string>>();
    forest.target.classes = json::parse(metadata.at("lockstep.classes"))
                                .get<std::vector<std::string>>();
  } catch (const std::exception& failure) {
    return corrupt(path, failure.what());
  }
  LOCKSTEP_ASSIGN(forest.target.offset, read_offset(metadata, path));
  LOCKSTEP_ASSIGN(
      const auto node_starts,
      take<int64_t>(file, path, "tree.node_start", "I64"));
  LOCKSTEP_ASSIGN(
      const auto value_starts,
      take<int64_t>(file, path, "tree.value_start", "I64"));
  LOCKSTEP_ASSIGN(
      const auto features, take<int32_t>(file, path, "node.feature", "I32"));
  LOCKSTEP_ASSIGN(const auto bins, take<uint8_t>(file, path, "node.bin", "U8"));
  LOCKSTEP_ASSIGN(
      const auto thresholds, take<float>(file, path, "node.threshold", "F32"));
  LOCKSTEP_ASSIGN(
      const auto links, take<uint32_t>(file, path, "node.link", "U32"));
  LOCKSTEP_ASSIGN(
      const auto gains, take<float>(file, path, "node.gain", "F32"));
  LOCKSTEP_ASSIGN(
      const auto values, take<float>(file, path, "leaf.value", "F32"));
  LOCKSTEP_ASSIGN(
      const auto edge_starts, take<int64_t>(file, path, "bin.start", "I64"));
  LOCKSTEP_ASSIGN(const auto edges, take<float>(file, path, "bin.edge", "F32"));
  const auto width = static_cast<int64_t>(forest.value_width());
  const auto starts_well = [](const std::vector<int64_t>& starts, size_t end) {
    return starts.size() > 1 && starts.front() == 0 &&
           std::is_sorted(starts.begin(), starts.end()) &&
           starts.back() == static_cast<int64_t>(end);
  };
  if (!starts_well(node_starts, features.size()) ||
      !starts_well(value_starts, values.size() / forest.value_width()) ||
      !starts_well(edge_starts, edges.size()) ||
      edge_starts.size() != forest.features.size() + 1 ||
      value_starts.size() != node_starts.size() ||
      bins.size() != features.size() || links.size() != features.size() ||
      gains.size() != features.size() || thresholds.size() != features.size()) {
    return corrupt(path, "its tensors do not fit together");
  }
  if (!sound_values(values, !forest.target.classes.empty())) {
    return corrupt(
        path,
        forest.target.classes.empty() ? "a leaf's value is not finite"
                                      : "a leaf's share is not within 0 and 1");
  }
  std::vector<std::vector<float>> per_feature;
  for (size_t f = 0; f + 1 < edge_starts.size(); ++f) {
    per_feature.emplace_back(
        edges.begin() + edge_starts[f], edges.begin() + edge_starts[f + 1]);
    if (per_feature.back().size() >= kMaxBins) {
      return corrupt(path, "a feature has more than 256 bins");
    }
    if (!sound_edges(per_feature.back())) {
      return corrupt(
          path,
          fmt::format(
              "the edges of feature '{}' do not ascend", forest.features[f]));
    }
  }
  forest.binning = Binning(std::move(per_feature));
  for (size_t t = 0; t + 1 < node_starts.size(); ++t) {
    Tree tree;
    for (auto i = static_cast<size_t>(node_starts[t]);
         i < static_cast<size_t>(node_starts[t + 1]);
         ++i) {
      tree.nodes.push_back({features[i], bins[i], links[i], gains[i]});
    }
    tree.values.assign(
        values.begin() + value_starts[t] * width,
        values.begin() + value_starts[t + 1] * width);
    if (!sound(tree, forest.features.size(), static_cast<size_t>(width))) {
      return corrupt(path, fmt::format("tree {} is broken", t));
    }
    const auto own = std::span(thresholds)
                         .subspan(static_cast<size_t>(node_starts[t]))
                         .first(tree.nodes.size());
    if (!same_splits(tree, own, forest.binning)) {
      return corrupt(
          path,
          fmt::format("node.bin and node.threshold of tree {} disagree", t));
    }
    tree.depth = depth_of(tree);
    forest.trees.push_back(std::move(tree));
  }
  return forest;
}

}  // namespace lockstep::forest
