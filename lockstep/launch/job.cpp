#include "lockstep/launch/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <sstream>

#include "lockstep/base/nearest.h"
#include "lockstep/launch/container.h"

namespace lockstep::launch {
namespace {

using config::Node;

// A map of one key, where that key's value alone stood.
Node named(const char* key, const Node& value) {
  Node map = Node::map(value.place());
  map.set(key, value);
  return map;
}

// `train: vit` and `data: mnist` below train stand for maps, and are made maps
// before anything is merged: the other keys would go otherwise.
void name_choices(Node& tree) {
  const Node* train = tree.find("train");
  if (train == nullptr || train->is_null()) {
    return;
  }
  Node renamed =
      train->kind() == Node::Kind::kScalar ? named("recipe", *train) : *train;
  for (const auto& [key, value] : train->entries()) {
    if (is_trainer_group(key) &&
        (value.kind() == Node::Kind::kScalar || value.is_null())) {
      renamed.set(key, named("name", value));
    }
  }
  tree.set("train", std::move(renamed));
}

std::vector<std::string> top_keys() {
  std::vector<std::string> keys;
  for (const config::FieldDoc& doc : config::describe<Job>()) {
    std::string key = doc.key.substr(0, doc.key.find('.'));
    if (std::ranges::find(keys, key) == keys.end()) {
      keys.push_back(std::move(key));
    }
  }
  return keys;
}

Result<void> take_secrets(Job& job, const Environment& environment) {
  const Node secrets = job.secrets;
  if (!secrets.is_null() && secrets.kind() != Node::Kind::kMap) {
    return config::invalid_at(
        secrets.place(), "secrets must be a map of names: {TOKEN: null}");
  }
  if (secrets.is_null()) {
    return {};
  }
  job.secrets = Node::map(secrets.place());
  for (const auto& [name, value] : secrets.entries()) {
    if (value.kind() == Node::Kind::kScalar) {
      job.secret_values[name] = value.text();
    } else if (value.kind() != Node::Kind::kNull) {
      return config::invalid_at(
          value.place(),
          fmt::format("secrets.{} must be null or one text", name));
    } else if (
        const auto found = environment.find(name); found != environment.end()) {
      job.secret_values[name] = found->second;
    } else {
      return std::move(
                 config::invalid_at(
                     value.place(),
                     fmt::format("secrets.{0}: {0} is not set", name)))
          .with_fix(fmt::format("export {}=... before you start", name));
    }
    job.secrets.set(name, Node::null(value.place()));
  }
  return {};
}

Result<void> check_names(const Job& job, const Node& tree) {
  const auto check = [&](const char* group,
                         const std::string& name,
                         const std::string& value) {
    const Node* section = tree.find(group);
    const Node* entry = section == nullptr ? nullptr : section->find(name);
    const config::Place place =
        entry == nullptr ? config::Place{} : entry->place();
    if (name.empty() || name.find('=') != std::string::npos) {
      return Result<void>(config::invalid_at(
          place, fmt::format("{}: '{}' is no name", group, name)));
    }
    // It would be cut there without a word.
    if (value.find('\0') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return Result<void>(config::invalid_at(
          place,
          fmt::format("{}.{}: no variable can hold a NUL byte", group, name)));
    }
    const size_t dot = name.rfind('.');
    if (is_reserved_name(
            dot == std::string::npos ? name : name.substr(dot + 1))) {
      return Result<void>(config::invalid_at(
          place,
          fmt::format(
              "{}.{}: lockstep sets this itself for each rank", group, name)));
    }
    return Result<void>();
  };
  for (const auto& [name, value] : job.envs) {
    LOCKSTEP_TRY(check("envs", name, value));
    if (job.secret_values.contains(name)) {
      return config::invalid_at(
          tree.place(),
          fmt::format(
              "{0} stands in 'envs' and in 'secrets': name it once", name));
    }
  }
  for (const auto& [name, value] : job.secret_values) {
    LOCKSTEP_TRY(check("secrets", name, value));
  }
  return {};
}

Result<void> check_program(const Job& job, const Node& tree) {
  if (!job.run.is_null() && !job.train.is_null()) {
    return config::invalid_at(
        job.train.place(), "a job has either 'run' or 'train', not both");
  }
  if (job.run.is_null() && job.train.is_null()) {
    return std::move(
               config::invalid_at(
                   {tree.place().source, 0},
                   "the job says neither 'run' nor 'train'"))
        .with_fix(
            "add 'run: python3 train.py' or 'train: {recipe: dcgan, ...}'");
  }
  for (const int rank : {0, 1}) {
    LOCKSTEP_TRY(job_command(job, "lockstep-train", 0, rank));
  }
  LOCKSTEP_TRY(job_container(job));
  return {};
}

Result<Job>
finish_job(const Node& tree, Job defaults, const Environment& environment) {
  LOCKSTEP_ASSIGN(Job job, config::read<Job>(tree, std::move(defaults)));
  LOCKSTEP_TRY(check_program(job, tree));
  LOCKSTEP_TRY(take_secrets(job, environment));
  LOCKSTEP_TRY(check_names(job, tree));
  std::error_code ignored;
  job.workdir = std::filesystem::absolute(
                    job.workdir.empty() ? "." : job.workdir, ignored)
                    .lexically_normal()
                    .string();
  if (job.workdir.size() > 1 && job.workdir.ends_with('/')) {
    job.workdir.pop_back();
  }
  return job;
}

Result<Node>
lay_over(Node tree, const std::vector<std::string>& overrides, bool has_train) {
  const std::vector<std::string> own = top_keys();
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error(
          ErrorCode::kInvalidInput, fmt::format("'{}' is not key=value", text));
    }
    const std::string key = text.substr(0, equals);
    const bool is_own =
        std::ranges::find(own, key.substr(0, key.find('.'))) != own.end();
    LOCKSTEP_ASSIGN(
        Node over,
        config::parse_override(is_own || !has_train ? text : "train." + text));
    name_choices(over);
    tree = config::merge(std::move(tree), over);
  }
  return tree;
}

// Keys stay: a job is read by them.
Node redacted(const Job& job, const Node& node) {
  switch (node.kind()) {
    case Node::Kind::kScalar: {
      std::string text = redact(job, node.text());
      return text == node.text()
                 ? node
                 : Node::scalar(std::move(text), node.place(), true);
    }
    case Node::Kind::kList: {
      Node list = Node::list(node.place());
      for (const Node& item : node.items()) {
        list.append(redacted(job, item));
      }
      return list;
    }
    case Node::Kind::kMap: {
      Node map = Node::map(node.place());
      for (const auto& [key, value] : node.entries()) {
        map.set(key, redacted(job, value));
      }
      return map;
    }
    case Node::Kind::kNull:
      break;
  }
  return node;
}

// Quotes and escapes of YAML would hide a value from redact.
std::string redacted_yaml(const Job& job, const std::string& value) {
  const auto tree = config::parse_yaml("value: " + value, "job");
  const Node* node = tree ? tree->find("value") : nullptr;
  if (node == nullptr) {
    return redact(job, value);
  }
  const std::string shown = config::to_flow_yaml(redacted(job, *node));
  return shown == config::to_flow_yaml(*node) ? value : shown;
}

std::vector<config::FieldDoc> changed_fields(const Job& job) {
  const auto defaults = config::describe<Job>();
  auto docs = config::describe<Job>(job);
  std::vector<config::FieldDoc> changed;
  for (size_t i = 0; i < docs.size(); ++i) {
    if (docs[i].value != defaults[i].value) {
      changed.push_back(std::move(docs[i]));
    }
  }
  return changed;
}

}  // namespace

Result<Job> load_job(
    const std::string& path,
    const std::vector<std::string>& overrides,
    const Environment& environment) {
  LOCKSTEP_ASSIGN(Node tree, config::load_yaml(path));
  const Node* train = tree.find("train");
  const bool has_train = train != nullptr && !train->is_null();
  name_choices(tree);
  LOCKSTEP_ASSIGN(tree, lay_over(std::move(tree), overrides, has_train));
  Job defaults;
  defaults.name = std::filesystem::path(path).stem().string();
  return finish_job(tree, std::move(defaults), environment);
}

Result<Job> parse_job(
    const std::string& text,
    const std::string& source,
    const Environment& secrets) {
  LOCKSTEP_ASSIGN(Node tree, config::parse_yaml(text, source));
  name_choices(tree);
  return finish_job(tree, Job(), secrets);
}

Result<Job> program_job(
    const std::vector<std::string>& argv,
    const std::vector<std::string>& overrides,
    const Environment& environment) {
  if (argv.empty()) {
    return Error(ErrorCode::kInvalidInput, "no program after '--'");
  }
  const config::Place place{"command line", 0};
  Node run = Node::list(place);
  for (const std::string& argument : argv) {
    run.append(Node::scalar(argument, place, true));
  }
  Node tree = Node::map(place);
  tree.set("run", std::move(run));
  LOCKSTEP_ASSIGN(tree, lay_over(std::move(tree), overrides, false));
  Job defaults;
  defaults.name = std::filesystem::path(argv[0]).filename().string();
  return finish_job(tree, std::move(defaults), environment);
}

std::string job_yaml(const Job& job) {
  auto fields = changed_fields(job);
  if (!job.secret_values.empty()) {
    for (config::FieldDoc& field : fields) {
      field.value = redacted_yaml(job, field.value);
    }
  }
  return config::print_yaml(fields);
}

std::string job_text(const Job& job) {
  return config::print_yaml(changed_fields(job));
}

std::vector<std::string> secret_texts(const Job& job) {
  constexpr size_t kShortest = 3;
  constexpr size_t kShortestLine = 4;
  std::vector<std::string> texts;
  for (const auto& [name, value] : job.secret_values) {
    if (value.size() >= kShortest) {
      texts.push_back(value);
    }
    // Output is shown line by line.
    std::istringstream lines(value);
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) {
        line.pop_back();
      }
      if (line.size() >= kShortestLine && line != value) {
        texts.push_back(line);
      }
    }
  }
  // A value may be a part of another one.
  std::ranges::stable_sort(texts, std::ranges::greater(), [](const auto& one) {
    return one.size();
  });
  return texts;
}

std::string redact(const Job& job, std::string text) {
  return mask(secret_texts(job), std::move(text));
}

std::string mask(const std::vector<std::string>& hidden, std::string text) {
  for (const std::string& one : hidden) {
    size_t at = 0;
    while ((at = text.find(one, at)) != std::string::npos) {
      text.replace(at, one.size(), "***");
      at += 3;
    }
  }
  return text;
}

}  // namespace lockstep::launch
