#include "lockstep/forest/tree_bytes.h"

#include <gtest/gtest.h>

namespace lockstep::forest {
namespace {

// A split, a leaf on its left, and on its right a split with two leaves.
Tree make_tree(int32_t feature, std::vector<float> values) {
  Tree tree;
  tree.nodes = {
      {feature, 255, 1, 2.5F},
      {kLeaf, 0, 0, 0},
      {1, 0, 3, 1e-30F},
      {kLeaf, 0, 1, 0},
      {kLeaf, 0, 2, 0}};
  tree.values = std::move(values);
  tree.depth = 2;
  return tree;
}

std::vector<float> one_hot(size_t classes, size_t place) {
  std::vector<float> values(3 * classes);
  values[place] = 1;
  values[classes] = values[classes + 1] = .5F;
  values[2 * classes] = 1;
  return values;
}

TEST(TreeBytes, TreesComeBackOneAfterTheOther) {
  const std::vector<Tree> trees = {
      make_tree(0, {1, 2, 3}),               // numbers
      make_tree(7, {1, 0, .5F, .5F, 0, 1}),  // of one class, and mixed
      make_tree(65533, one_hot(3, 2)),
      make_tree(65534, one_hot(3, 2)),      // features beyond 16 bits
      make_tree(70000, one_hot(300, 254)),  // classes beyond 8
      make_tree(5, one_hot(300, 255)),
      {{Node{}}, {.25F, .75F}, 0}};  // a leaf alone
  std::string bytes;
  for (const auto& tree : trees) {
    put_tree(tree, bytes);
  }
  std::string_view rest = bytes;
  for (const auto& tree : trees) {
    EXPECT_EQ(take_tree(rest), tree);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(TreeBytes, LeavesOfOneClassAreShort) {
  std::string short_bytes;
  std::string long_bytes;
  put_tree(make_tree(0, one_hot(100, 3)), short_bytes);
  put_tree(make_tree(0, std::vector<float>(300, .01F)), long_bytes);
  EXPECT_LT(short_bytes.size(), 500U);
  EXPECT_GT(long_bytes.size(), 1200U);
}

}  // namespace
}  // namespace lockstep::forest
