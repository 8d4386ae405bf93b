#pragma once

// Named choices that set many keys at once: `data=cifar10` stands for the tree
// {data: {name: cifar10, image_size: 32}}. A Groups is filled once at start
// and then only read. Pure, but for choices that name a YAML file.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/config/node.h"

namespace lockstep::config {

class Groups {
 public:
  // `yaml_text` is a full tree, as in a file. A choice that is already there
  // is replaced. Empty text: a group whose choices are files only.
  void add(
      const std::string& group,
      const std::string& choice,
      std::string yaml_text);
  // A group without choices of its own: `experiment=my.yaml`.
  void add(const std::string& group);

  bool contains(std::string_view group) const;
  std::vector<std::string> names() const;  // in the order added
  std::vector<std::string> choices(std::string_view group) const;
  // The tree of a choice, or of the file when it ends with .yaml or .yml. An
  // unknown choice gets the nearest ones or the list of all.
  Result<Node> load(const std::string& group, const std::string& choice) const;

 private:
  using Choices = std::vector<std::pair<std::string, std::string>>;
  std::vector<std::pair<std::string, Choices>> groups_;
  const Choices* find(std::string_view group) const;
};

// Each argument is `group=choice`, where the group is known, or a dotted
// override. Over `base` come those of `experiment`, then the other choices,
// then overrides, each kind in its order, wherever they stand:
// `data.batch_size=8 data=cifar10` keeps the 8. All bad arguments are reported,
// one a line.
Result<Node> resolve(
    const Groups& groups,
    Node base,
    std::span<const std::string> arguments);

}  // namespace lockstep::config
