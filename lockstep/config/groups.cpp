#include "lockstep/config/groups.h"

#include <fmt/format.h>

#include "lockstep/base/nearest.h"

namespace lockstep::config {
namespace {

// A bundle of keys: what is chosen beside it is meant to change it.
constexpr std::string_view kPreset = "experiment";

bool is_file(std::string_view choice) {
  return choice.ends_with(".yaml") || choice.ends_with(".yml");
}

Result<Node>
load_choice(const Groups& groups, const std::string& argument, size_t equals) {
  auto tree =
      groups.load(argument.substr(0, equals), argument.substr(equals + 1));
  const std::string place = fmt::format("command line '{}'", argument);
  if (!tree) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{}: {}", place, tree.error().to_string()));
  }
  if (tree->kind() == Node::Kind::kScalar ||
      tree->kind() == Node::Kind::kList) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{}: {}: must be a map of keys", place, tree->place().to_string()));
  }
  return tree;
}

}  // namespace

const Groups::Choices* Groups::find(std::string_view group) const {
  for (const auto& [name, choices] : groups_) {
    if (name == group) {
      return &choices;
    }
  }
  return nullptr;
}

void Groups::add(const std::string& group) {
  if (find(group) == nullptr) {
    groups_.emplace_back(group, Choices{});
  }
}

void Groups::add(
    const std::string& group,
    const std::string& choice,
    std::string yaml_text) {
  add(group);
  for (auto& [name, choices] : groups_) {
    if (name == group) {
      std::erase_if(
          choices, [&](const auto& old) { return old.first == choice; });
      choices.emplace_back(choice, std::move(yaml_text));
    }
  }
}

bool Groups::contains(std::string_view group) const {
  return find(group) != nullptr;
}

std::vector<std::string> Groups::names() const {
  std::vector<std::string> names;
  for (const auto& [name, choices] : groups_) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::string> Groups::choices(std::string_view group) const {
  std::vector<std::string> names;
  if (const Choices* choices = find(group)) {
    for (const auto& [name, text] : *choices) {
      names.push_back(name);
    }
  }
  return names;
}

Result<Node> Groups::load(const std::string& group, const std::string& choice)
    const {
  if (is_file(choice)) {
    return load_yaml(choice);
  }
  if (const Choices* known = find(group)) {
    for (const auto& [name, text] : *known) {
      if (name == choice) {
        return parse_yaml(text, fmt::format("{}={}", group, choice));
      }
    }
  }
  const auto names = choices(group);
  return Error(
      ErrorCode::kInvalidInput,
      names.empty()
          ? fmt::format(
                "'{}' is not a {}; it takes the path of a .yaml file",
                choice,
                group)
          : fmt::format(
                "'{}' is not a choice of {}; {} (or the path of a .yaml file)",
                choice,
                group,
                suggest(choice, names)));
}

Result<Node> resolve(
    const Groups& groups,
    Node base,
    std::span<const std::string> arguments) {
  std::string problems;
  const auto fail = [&](const std::string& text) {
    problems += (problems.empty() ? "" : "\n") + text;
  };
  Node presets;
  Node choices;
  Node overrides;
  for (const auto& argument : arguments) {
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    const bool is_choice = equals != std::string::npos && groups.contains(key);
    auto tree = is_choice ? load_choice(groups, argument, equals)
                          : parse_override(argument);
    if (!tree) {
      fail(tree.error().to_string());
      continue;
    }
    Node& layer = !is_choice ? overrides : key == kPreset ? presets : choices;
    layer = merge(std::move(layer), *tree);
  }
  if (!problems.empty()) {
    return Error(ErrorCode::kInvalidInput, problems);
  }
  base = merge(std::move(base), presets);
  base = merge(std::move(base), choices);
  return merge(std::move(base), overrides);
}

}  // namespace lockstep::config
