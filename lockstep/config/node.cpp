#include "lockstep/config/node.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::config {

std::string Place::to_string() const {
  return line > 0 ? fmt::format("{}:{}", source, line) : source;
}

Error invalid_at(const Place& place, const std::string& what) {
  const std::string where = place.to_string();
  return Error(
      ErrorCode::kInvalidInput,
      where.empty() ? what : fmt::format("{}: {}", where, what));
}

Node Node::null(Place place) {
  Node node;
  node.place_ = std::move(place);
  return node;
}

Node Node::scalar(std::string text, Place place, bool quoted) {
  Node node;
  node.kind_ = Kind::kScalar;
  node.text_ = std::move(text);
  node.place_ = std::move(place);
  node.quoted_ = quoted;
  return node;
}

Node Node::list(Place place) {
  Node node;
  node.kind_ = Kind::kList;
  node.place_ = std::move(place);
  return node;
}

Node Node::map(Place place) {
  Node node;
  node.kind_ = Kind::kMap;
  node.place_ = std::move(place);
  return node;
}

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, value] : entries_) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

Node* Node::find(std::string_view key) {
  return const_cast<Node*>(std::as_const(*this).find(key));
}

void Node::append(Node item) {
  kind_ = Kind::kList;
  items_.push_back(std::move(item));
}

void Node::set(const std::string& key, Node value) {
  kind_ = Kind::kMap;
  if (Node* old = find(key)) {
    *old = std::move(value);
  } else {
    entries_.emplace_back(key, std::move(value));
  }
}

bool Node::erase(std::string_view key) {
  return std::erase_if(entries_, [&](const auto& entry) {
           return entry.first == key;
         }) > 0;
}

Result<void> Node::set_path(std::string_view dotted, Node value) {
  Node* at = this;
  const std::string_view whole = dotted;
  size_t start = 0;
  while (true) {
    const size_t dot = whole.find('.', start);
    const std::string key(whole.substr(start, dot - start));
    if (key.empty()) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: '{}' is not a key: a part of it is empty",
              value.place().to_string(),
              whole));
    }
    if (at->kind_ == Kind::kScalar || at->kind_ == Kind::kList) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: cannot set {}: {} is a value there ({}), not a map",
              value.place().to_string(),
              whole,
              start == 0 ? "the root" : whole.substr(0, start - 1),
              at->place_.to_string()));
    }
    if (dot == std::string_view::npos) {
      at->set(key, std::move(value));
      return {};
    }
    if (at->find(key) == nullptr) {
      at->set(key, map(value.place()));
    }
    at->kind_ = Kind::kMap;
    at = at->find(key);
    start = dot + 1;
  }
}

Node merge(Node base, const Node& over) {
  if (over.kind() == Node::Kind::kNull) {
    return base;
  }
  if (base.kind() != Node::Kind::kMap || over.kind() != Node::Kind::kMap) {
    return over;
  }
  for (const auto& [key, value] : over.entries()) {
    Node* old = base.find(key);
    const bool both = old != nullptr && old->kind() == Node::Kind::kMap &&
                      value.kind() == Node::Kind::kMap;
    if (both) {
      *old = merge(std::move(*old), value);
    } else {
      base.set(key, value);
    }
  }
  return base;
}

Node with_home(Node node, std::string_view home) {
  if (home.empty()) {
    return node;
  }
  Node there;
  switch (node.kind()) {
    case Node::Kind::kNull:
      return node;
    case Node::Kind::kScalar:
      return node.text().starts_with("~/")
                 ? Node::scalar(
                       std::string(home) + node.text().substr(1),
                       node.place(),
                       node.quoted())
                 : node;
    case Node::Kind::kList:
      there = Node::list(node.place());
      for (const Node& item : node.items()) {
        there.append(with_home(item, home));
      }
      return there;
    case Node::Kind::kMap:
      there = Node::map(node.place());
      for (const auto& [key, value] : node.entries()) {
        there.set(key, with_home(value, home));
      }
      return there;
  }
  return node;
}

}  // namespace lockstep::config
