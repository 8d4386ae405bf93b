#include "lockstep/launch/job.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

using config::Node;

Result<void> flatten(
    const Node& node,
    const std::string& key,
    std::vector<std::string>& arguments) {
  switch (node.kind()) {
    case Node::Kind::kNull:
      return {};
    case Node::Kind::kScalar:
    case Node::Kind::kList:
      arguments.push_back(key + "=" + trainer_value(node));
      return {};
    case Node::Kind::kMap:
      break;
  }
  for (const auto& [name, value] : node.entries()) {
    if (name == "name" && is_trainer_group(key)) {
      LOCKSTEP_TRY(flatten(value, key, arguments));
    } else {
      LOCKSTEP_TRY(flatten(value, key + "." + name, arguments));
    }
  }
  return {};
}

// A text goes through a shell, a list is the argument vector as it stands.
Result<std::vector<std::string>>
command_of(const Node& node, const std::string& key, const char* shell) {
  if (node.kind() == Node::Kind::kScalar) {
    return std::vector<std::string>{shell, "-c", node.text()};
  }
  if (node.kind() != Node::Kind::kList) {
    return config::invalid_at(
        node.place(), key + " must be a command or a list of arguments");
  }
  std::vector<std::string> argv;
  for (const Node& item : node.items()) {
    if (item.kind() != Node::Kind::kScalar) {
      return config::invalid_at(
          item.place(), key + ": every argument must be a text");
    }
    argv.push_back(item.text());
  }
  if (argv.empty() || argv[0].empty()) {
    return config::invalid_at(node.place(), key + ": no program is named");
  }
  return argv;
}

// The program of a rank when each role has its own.
Result<std::vector<std::string>>
role_command(const Node& run, int rank, const char* shell) {
  for (const auto& [role, program] : run.entries()) {
    if (role != "head" && role != "worker") {
      return config::invalid_at(
          program.place(), fmt::format("run.{}: accepted: head, worker", role));
    }
  }
  const std::string role = rank == 0 ? "head" : "worker";
  const Node* program = run.find(role);
  if (program == nullptr || program->is_null()) {
    return config::invalid_at(
        run.place(),
        fmt::format("run: '{}' is missing; both head and worker are", role));
  }
  return command_of(*program, "run." + role, shell);
}

}  // namespace

// An override is YAML only where it begins as null, a list, a map or a quoted
// text; quotes in the file that said "text" must then reach the trainer too.
std::string trainer_value(const Node& node) {
  if (node.kind() == Node::Kind::kList) {
    return config::to_flow_yaml(node);
  }
  const std::string& text = node.text();
  const bool special =
      text == "null" || text == "~" ||
      (!text.empty() && std::string_view("[{\"'").contains(text[0]));
  return node.quoted() && special ? config::quote_yaml(text) : text;
}

bool is_trainer_group(std::string_view key) {
  return key == "data" || key == "trainer";
}

Result<std::vector<std::string>> trainer_arguments(const Node& train) {
  if (train.kind() == Node::Kind::kScalar) {
    return std::vector<std::string>{train.text()};
  }
  const Node* recipe =
      train.kind() == Node::Kind::kMap ? train.find("recipe") : nullptr;
  if (recipe == nullptr || recipe->kind() != Node::Kind::kScalar) {
    return config::invalid_at(
        train.place(), "train needs a recipe: {recipe: dcgan, ...}");
  }
  std::vector<std::string> arguments = {recipe->text()};
  for (const auto& [key, value] : train.entries()) {
    if (key != "recipe") {
      LOCKSTEP_TRY(flatten(value, key, arguments));
    }
  }
  return arguments;
}

Result<std::vector<std::string>>
job_command(const Job& job, const os::Path& trainer, int generation, int rank) {
  if (!job.train.is_null()) {
    LOCKSTEP_ASSIGN(
        std::vector<std::string> arguments, trainer_arguments(job.train));
    const bool told = std::ranges::any_of(arguments, [](const auto& text) {
      return text.starts_with("trainer.resume=");
    });
    if (generation > 0 && !told) {
      arguments.emplace_back("trainer.resume=auto");
    }
    arguments.insert(
        arguments.begin(),
        !job.container.is_null() ? "lockstep-train" : trainer.string());
    return arguments;
  }
  const char* shell = !job.container.is_null() ? "sh" : "bash";
  if (job.run.kind() == Node::Kind::kMap) {
    return role_command(job.run, rank, shell);
  }
  if (!job.run.is_null()) {
    return command_of(job.run, "run", shell);
  }
  return config::invalid_at(job.run.place(), "run: no program is named");
}

}  // namespace lockstep::launch
