#pragma once

// The trainer's command line: lockstep-train RECIPE [VERB] [--config F]
// [--help | --print-config] [group=choice ...] [dotted.key=value ...].

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/config/node.h"

namespace lockstep::recipes {

struct Command {
  bool help = false;
  bool list = false;
  bool version = false;
  bool print_config = false;
  std::string recipe;
  std::string verb = "train";  // or test, or one of the recipe's
  std::string config_file;
  std::vector<std::string> arguments;
};

Result<Command> parse_command(std::span<const std::string> words);

// The file of --config; a null node without one. The job.yaml of a run that the
// trainer began by itself is such a file: its `recipe` must be this one.
Result<config::Node> load_config(const Command& command);

std::string usage_text();
std::string list_text();
// Every key of a recipe with type, default and meaning, and its groups.
Result<std::string> recipe_help(const std::string& recipe);

}  // namespace lockstep::recipes
