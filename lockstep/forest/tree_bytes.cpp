#include "lockstep/forest/tree_bytes.h"

#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::forest {
namespace {

template <class T>
void put(const std::vector<T>& values, std::string& bytes) {
  const uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

template <class T>
std::vector<T> take(std::string_view& bytes) {
  uint64_t count = 0;
  LOCKSTEP_CHECK_LE(sizeof count, bytes.size());
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  LOCKSTEP_CHECK_LE(count * sizeof(T), bytes.size());
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return values;
}

}  // namespace

void put_tree(const Tree& tree, std::string& bytes) {
  put(tree.nodes, bytes);
  put(tree.values, bytes);
  put(std::vector<int>{tree.depth}, bytes);
}

Tree take_tree(std::string_view& bytes) {
  Tree tree;
  tree.nodes = take<Node>(bytes);
  tree.values = take<float>(bytes);
  tree.depth = take<int>(bytes).at(0);
  return tree;
}

}  // namespace lockstep::forest
