#include "lockstep/forest/tree.h"

#include <algorithm>

namespace lockstep::forest {

Tree in_order(const Tree& tree, int value_width) {
  struct Step {
    uint32_t from;
    uint32_t to;
    int depth;
  };
  Tree result;
  result.nodes.resize(1);
  std::vector<Step> stack = {{0, 0, 0}};
  const auto width = static_cast<size_t>(value_width);
  while (!stack.empty()) {
    const Step step = stack.back();
    stack.pop_back();
    Node node = tree.nodes[step.from];
    result.depth = std::max(result.depth, step.depth);
    if (node.feature == kLeaf) {
      const auto* value = tree.values.data() + node.link * width;
      node.link = static_cast<uint32_t>(result.values.size() / width);
      result.values.insert(result.values.end(), value, value + width);
    } else {
      const uint32_t left = node.link;
      node.link = static_cast<uint32_t>(result.nodes.size());
      result.nodes.resize(result.nodes.size() + 2);
      stack.push_back({left + 1, node.link + 1, step.depth + 1});
      stack.push_back({left, node.link, step.depth + 1});
    }
    result.nodes[step.to] = node;
  }
  return result;
}

std::vector<double> importances(const Forest& forest) {
  std::vector<double> sum(forest.features.size());
  for (const auto& tree : forest.trees) {
    std::vector<double> own(sum.size());
    double total = 0;
    for (const auto& node : tree.nodes) {
      if (node.feature != kLeaf) {
        own[static_cast<size_t>(node.feature)] += node.gain;
        total += node.gain;
      }
    }
    for (size_t f = 0; f < sum.size() && total > 0; ++f) {
      sum[f] += own[f] / total;
    }
  }
  double total = 0;
  for (const double value : sum) {
    total += value;
  }
  for (double& value : sum) {
    value = total > 0 ? value / total : 0;
  }
  return sum;
}

}  // namespace lockstep::forest
