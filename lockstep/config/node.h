#pragma once

// A configuration before it has types: a tree of maps, lists and scalars,
// every node knowing the place it came from. YAML files, group choices and
// dotted overrides all become trees and are merged, later over earlier. Plain
// values: copy them freely; no thread rule beyond that of std::vector.

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
// What is wrong at a place: "job.yaml:12: what".
Error invalid_at(const Place& place, const std::string& what);

class Node {
 public:
  enum class Kind { kNull, kScalar, kList, kMap };

  Node() = default;
  static Node null(Place place);
  // `quoted`: it was written in quotes, so "5" stays text when printed again.
  static Node scalar(std::string text, Place place, bool quoted = false);
  static Node list(Place place);
  static Node map(Place place);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  // Of a key's value: that of the key, wherever the value begins.
  const Place& place() const { return place_; }
  void set_place(Place place) { place_ = std::move(place); }
  const std::string& text() const { return text_; }  // of a scalar
  bool quoted() const { return quoted_; }
  const std::vector<Node>& items() const { return items_; }
  // In the order written.
  const std::vector<std::pair<std::string, Node>>& entries() const {
    return entries_;
  }
  const Node* find(std::string_view key) const;  // direct child or null
  Node* find(std::string_view key);
  void append(Node item);
  void set(const std::string& key, Node value);  // replaces
  bool erase(std::string_view key);
  // Sets at a dotted path, making maps on the way. Fails when a part is empty
  // or a scalar or list is in the way.
  Result<void> set_path(std::string_view dotted, Node value);

 private:
  Kind kind_ = Kind::kNull;
  Place place_;
  std::string text_;
  bool quoted_ = false;
  std::vector<Node> items_;
  std::vector<std::pair<std::string, Node>> entries_;
};

// Duplicate keys, tabs, unclosed quotes, cyclic aliases, deep nesting, aliases
// that expand without measure, bytes that are not text and a second document
// are errors with file:line. A key with dots is split (`optim.lr: 1` nests)
// unless it is quoted. `<<: *base` merges. Empty text gives a null node.
Result<Node> parse_yaml(std::string_view text, const std::string& source);
// Not found, unreadable and larger than 1 MiB are errors that name the path.
Result<Node> load_yaml(const std::string& path);

// "optim.lr=1e-3". A value that starts with [ { " or ' is YAML; `null` and `~`
// are null (the default stays); anything else is text as it stands, so that
// `pattern=*.png` needs no quotes. `key=` is the empty text.
Result<Node> parse_override(std::string_view argument);

// Texts that begin with ~/ are below `home`, as a shell has them where a word
// begins. Empty: nothing changes.
Node with_home(Node node, std::string_view home);

// Maps merge key by key; anything else is replaced by `over`. A null tree (an
// empty file) changes nothing at the root.
Node merge(Node base, const Node& over);

// As YAML, keys in order.
std::string to_yaml(const Node& node);
// As YAML on one line: `[1, 2]`, `{a: b}`.
std::string to_flow_yaml(const Node& node);
// A text as one YAML scalar: as it is, or in double quotes when a YAML reader
// would take it for something else ("yes", "1e3", "", "a: b", "#x").
std::string quote_yaml(std::string_view text);

}  // namespace lockstep::config
