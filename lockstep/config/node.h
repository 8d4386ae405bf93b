#pragma once

// A configuration before it has types: a tree of maps, lists and scalars,
// every node knowing the place it came from. YAML files, group choices and
// dotted overrides all become trees and are merged, later over earlier.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::config {

// "job.yaml:12" or "command line 'optim.lr=x'".
struct Place {
  std::string source;
  int line = 0;  // 0: no lines there
  std::string to_string() const;
};

class Node {
 public:
  enum class Kind { kNull, kScalar, kList, kMap };

  Node() = default;
  static Node scalar(std::string text, Place place);
  static Node list(Place place);
  static Node map(Place place);

  Kind kind() const { return kind_; }
  const Place& place() const { return place_; }
  const std::string& text() const { return text_; }  // of a scalar
  const std::vector<Node>& items() const { return items_; }
  // In the order written.
  const std::vector<std::pair<std::string, Node>>& entries() const {
    return entries_;
  }
  const Node* find(std::string_view key) const;  // direct child or null
  void append(Node item);
  void set(const std::string& key, Node value);  // replaces
  bool erase(std::string_view key);
  // Sets at a dotted path, making maps on the way.
  Result<void> set_path(std::string_view dotted, Node value);

 private:
  Kind kind_ = Kind::kNull;
  Place place_;
  std::string text_;
  std::vector<Node> items_;
  std::vector<std::pair<std::string, Node>> entries_;
};

// Duplicate keys, tabs, unclosed quotes, cyclic aliases and deep nesting are
// errors with file:line. A key with dots is split (`optim.lr: 1` nests).
Result<Node> parse_yaml(std::string_view text, const std::string& source);
Result<Node> load_yaml(const std::string& path);

// "optim.lr=1e-3": value parsed as YAML (lists and maps too), place says so.
Result<Node> parse_override(std::string_view argument);

// Maps merge key by key; anything else is replaced by `over`.
Node merge(Node base, const Node& over);

// As YAML, keys in order.
std::string to_yaml(const Node& node);

}  // namespace lockstep::config
