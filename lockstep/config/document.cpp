// What a Binder collected, as help text and as YAML.

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/config/binder.h"

namespace lockstep::config {
namespace {

struct Branch {
  std::string name;
  std::string value;
  std::vector<Branch> children;

  Branch& child(const std::string& key) {
    for (auto& branch : children) {
      if (branch.name == key) {
        return branch;
      }
    }
    children.push_back({key, "", {}});
    return children.back();
  }
  void print(size_t indent, std::string& out) const {
    for (const auto& branch : children) {
      out += std::string(indent, ' ') + quote_yaml(branch.name) + ":";
      if (branch.children.empty()) {
        out += " " + branch.value + "\n";
      } else {
        out += "\n";
        branch.print(indent + 2, out);
      }
    }
  }
};

}  // namespace

std::string help_text(const std::vector<FieldDoc>& docs) {
  size_t key_width = 0;
  size_t type_width = 0;
  size_t value_width = 0;
  constexpr size_t kWidest = 32;
  for (const auto& doc : docs) {
    key_width = std::max(key_width, std::min(doc.key.size(), kWidest));
    type_width = std::max(type_width, std::min(doc.type.size(), kWidest));
    value_width = std::max(value_width, std::min(doc.value.size(), kWidest));
  }
  std::string out;
  for (const auto& doc : docs) {
    out += fmt::format(
        "  {:<{}}  {:<{}}  {:<{}}  {}\n",
        doc.key,
        key_width,
        doc.type,
        type_width,
        doc.value,
        value_width,
        doc.meaning);
  }
  return out;
}

std::string print_yaml(const std::vector<FieldDoc>& docs) {
  Branch root;
  for (const auto& doc : docs) {
    Branch* at = &root;
    size_t start = 0;
    while (start <= doc.key.size()) {
      const size_t dot = std::min(doc.key.find('.', start), doc.key.size());
      at = &at->child(doc.key.substr(start, dot - start));
      start = dot + 1;
    }
    at->value = doc.value;
  }
  std::string out;
  root.print(0, out);
  return out;
}

}  // namespace lockstep::config
