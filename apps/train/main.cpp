// lockstep-train: parse, build, run, close.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/os/process.h"
#include "lockstep/os/standard_streams.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/recipes/session.h"
#include "lockstep/train/rank_environment.h"

namespace {

using lockstep::Result;
using lockstep::recipes::Command;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

Result<std::string> text_for(const Command& command) {
  if (command.version) {
    return "lockstep-train " + lockstep::version() + "\n";
  }
  if (command.list) {
    return lockstep::recipes::list_text();
  }
  return command.recipe.empty()
             ? Result<std::string>(lockstep::recipes::usage_text())
             : lockstep::recipes::recipe_help(command.recipe);
}

Result<std::string> config_text(const Command& command) {
  LOCKSTEP_ASSIGN(
      const auto* entry, lockstep::recipes::find_recipe(command.recipe));
  LOCKSTEP_ASSIGN(auto base, lockstep::recipes::load_config(command));
  LOCKSTEP_ASSIGN(
      const auto node,
      lockstep::config::resolve(
          lockstep::recipes::make_groups(*entry),
          std::move(base),
          command.arguments));
  // As this rank would see it: how many ranks there are is part of it.
  LOCKSTEP_ASSIGN(
      const auto ranks,
      lockstep::train::read_rank_environment(lockstep::os::environment()));
  LOCKSTEP_ASSIGN(const auto prepared, entry->prepare(node, ranks.world_size));
  return prepared.config;
}

int print(const Result<std::string>& text) {
  if (!text) {
    std::fprintf(stderr, "%s\n", text.error().to_string().c_str());
    return kBadInput;
  }
  errno = 0;
  if (std::fputs(text->c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fprintf(
        stderr, "cannot write to standard output: %s\n", std::strerror(errno));
    return kFailed;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::os::hold_standard_streams();
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto command = lockstep::recipes::parse_command(words);
  if (!command) {
    std::fprintf(stderr, "%s\n", command.error().to_string().c_str());
    return kBadInput;
  }
  if (command->help || command->list || command->version) {
    return print(text_for(*command));
  }
  if (command->print_config) {
    return print(config_text(*command));
  }
  return lockstep::recipes::run_session(*command);
}
