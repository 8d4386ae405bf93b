#include "lockstep/forest/tree_bytes.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "lockstep/base/check.h"

namespace lockstep::forest {
namespace {

struct Header {
  uint32_t nodes = 0;
  uint32_t leaves = 0;
  uint32_t width = 0;  // floats a leaf
  int32_t depth = 0;
};

// In place of a feature, and of a class.
constexpr uint16_t kLeafMark = 0xffff;
constexpr uint16_t kLongMark = 0xfffe;  // the feature follows in 32 bits
constexpr uint8_t kMixedMark = 0xff;    // the shares follow

class Writer {
 public:
  Writer(std::string& bytes, size_t most) : bytes_(bytes), at_(bytes.size()) {
    bytes_.resize(at_ + most);
  }
  ~Writer() { bytes_.resize(at_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  template <class T>
  void put(const T& value) {
    put_all(std::span(&value, 1));
  }
  template <class T>
  void put_all(std::span<const T> values) {
    std::memcpy(bytes_.data() + at_, values.data(), values.size_bytes());
    at_ += values.size_bytes();
  }

 private:
  std::string& bytes_;
  size_t at_;
};

template <class T>
void take_all(std::string_view& bytes, std::span<T> values) {
  LOCKSTEP_CHECK_LE(values.size_bytes(), bytes.size());
  std::memcpy(values.data(), bytes.data(), values.size_bytes());
  bytes.remove_prefix(values.size_bytes());
}

template <class T>
T take(std::string_view& bytes) {
  T value{};
  take_all(bytes, std::span(&value, 1));
  return value;
}

// The class that has all of a leaf, or kMixedMark.
uint8_t only_class(std::span<const float> shares) {
  const auto one = std::find(shares.begin(), shares.end(), 1.F);
  if (shares.size() < 2 || one == shares.end()) {
    return kMixedMark;
  }
  const auto zeros = std::count(shares.begin(), shares.end(), 0.F);
  const auto place = static_cast<size_t>(one - shares.begin());
  return static_cast<size_t>(zeros) + 1 == shares.size() && place < kMixedMark
             ? static_cast<uint8_t>(place)
             : kMixedMark;
}

void put_leaf(std::span<const float> shares, Writer& writer) {
  writer.put(kLeafMark);
  const uint8_t only = only_class(shares);
  writer.put(only);
  if (only == kMixedMark) {
    writer.put_all(shares);
  }
}

void put_split(const Node& node, Writer& writer) {
  const bool fits = node.feature < kLongMark;
  writer.put(fits ? static_cast<uint16_t>(node.feature) : kLongMark);
  if (!fits) {
    writer.put(node.feature);
  }
  writer.put(static_cast<uint8_t>(node.bin));
  writer.put(node.gain);
}

}  // namespace

void put_tree(const Tree& tree, std::string& bytes) {
  Header header;
  header.nodes = static_cast<uint32_t>(tree.nodes.size());
  header.leaves = (header.nodes + 1) / 2;
  header.width = static_cast<uint32_t>(tree.values.size()) / header.leaves;
  header.depth = tree.depth;
  const size_t split = sizeof(uint16_t) + sizeof(Node);
  Writer writer(
      bytes,
      sizeof header + tree.nodes.size() * split +
          tree.values.size() * sizeof(float));
  writer.put(header);
  std::vector<uint32_t> stack = {0};
  while (!stack.empty()) {
    const Node& node = tree.nodes[stack.back()];
    stack.pop_back();
    if (node.feature == kLeaf) {
      put_leaf(
          std::span(tree.values)
              .subspan(size_t{node.link} * header.width, header.width),
          writer);
    } else {
      put_split(node, writer);
      stack.push_back(node.link + 1);
      stack.push_back(node.link);
    }
  }
}

Tree take_tree(std::string_view& bytes) {
  const auto header = take<Header>(bytes);
  Tree tree;
  tree.depth = header.depth;
  tree.nodes.resize(header.nodes);
  tree.values.resize(size_t{header.leaves} * header.width);
  uint32_t leaves = 0;
  uint32_t made = 1;
  std::vector<uint32_t> stack = {0};
  while (!stack.empty()) {
    Node& node = tree.nodes[stack.back()];
    stack.pop_back();
    const auto mark = take<uint16_t>(bytes);
    if (mark == kLeafMark) {
      LOCKSTEP_CHECK_LT(leaves, header.leaves);
      node.link = leaves;
      const auto shares =
          std::span(tree.values)
              .subspan(size_t{leaves++} * header.width, header.width);
      const auto only = take<uint8_t>(bytes);
      if (only == kMixedMark) {
        take_all(bytes, shares);
      } else {
        LOCKSTEP_CHECK_LT(only, shares.size());
        shares[only] = 1;
      }
      continue;
    }
    node.feature = mark == kLongMark ? take<int32_t>(bytes) : mark;
    node.bin = take<uint8_t>(bytes);
    node.gain = take<float>(bytes);
    node.link = made;
    made += 2;
    LOCKSTEP_CHECK_LE(made, header.nodes);
    stack.push_back(node.link + 1);
    stack.push_back(node.link);
  }
  return tree;
}

}  // namespace lockstep::forest
