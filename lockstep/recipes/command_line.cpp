#include "lockstep/recipes/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/nearest.h"
#include "lockstep/data/dataset.h"
#include "lockstep/recipes/registry.h"

namespace lockstep::recipes {
namespace {

const std::vector<std::string> kFlags =
    {"--help", "--list", "--version", "--print-config", "--config"};

// An unknown recipe is told later.
std::vector<std::string> verbs_of(const std::string& recipe) {
  std::vector<std::string> verbs = {"train", "test"};
  if (const auto entry = find_recipe(recipe)) {
    verbs.insert(verbs.end(), (*entry)->verbs.begin(), (*entry)->verbs.end());
  }
  return verbs;
}

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message)
      .with_fix("see 'lockstep-train --help'");
}

}  // namespace

Result<config::Node> load_config(const Command& command) {
  if (command.config_file.empty()) {
    return config::Node();
  }
  LOCKSTEP_ASSIGN(auto base, config::load_yaml(command.config_file));
  if (const config::Node* recipe = base.find("recipe")) {
    if (recipe->text() != command.recipe) {
      return config::invalid_at(
          recipe->place(),
          fmt::format(
              "the configuration of recipe '{}', not of '{}'",
              recipe->text(),
              command.recipe));
    }
    base.erase("recipe");
  }
  return base;
}

Result<Command> parse_command(std::span<const std::string> words) {
  Command command;
  bool verb_seen = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--help" || word == "-h") {
      command.help = true;
    } else if (word == "--list") {
      command.list = true;
    } else if (word == "--version") {
      command.version = true;
    } else if (word == "--print-config") {
      command.print_config = true;
    } else if (word == "--config") {
      if (i + 1 == words.size()) {
        return bad("--config needs a file");
      }
      command.config_file = words[++i];
    } else if (word.starts_with("--config=")) {
      command.config_file = word.substr(9);
    } else if (word.starts_with("-")) {
      return bad(
          fmt::format("unknown option '{}'; {}", word, suggest(word, kFlags)));
    } else if (word.find('=') != std::string::npos) {
      command.arguments.push_back(word);
    } else if (command.recipe.empty()) {
      command.recipe = word;
    } else if (!verb_seen) {
      verb_seen = true;
      const auto verbs = verbs_of(command.recipe);
      if (std::ranges::count(verbs, word) == 0) {
        return bad(
            fmt::format(
                "'{}' is neither a verb nor key=value; {}",
                word,
                suggest(word, verbs)));
      }
      command.verb = word;
    } else {
      return bad(fmt::format("'{}' is not key=value", word));
    }
  }
  const bool needs_recipe = !command.help && !command.list && !command.version;
  if (needs_recipe && command.recipe.empty()) {
    return bad("no recipe given; try 'lockstep-train --list'");
  }
  return command;
}

std::string usage_text() {
  return "lockstep-train: trains a recipe on one rank or many\n"
         "\n"
         "usage: lockstep-train RECIPE [VERB] [group=choice ...] "
         "[dotted.key=value ...]\n"
         "\n"
         "  VERB              train (if none is given), test, or of esrgan: "
         "upscale,\n"
         "                    of forest: predict, collocate\n"
         "  --list            recipes, data sets, trainers\n"
         "  RECIPE --help     every key: type, default, meaning\n"
         "  --print-config    the resolved configuration as YAML\n"
         "  --config FILE     start from such a file\n"
         "  --version\n"
         "\n"
         "Runs alone, under lockstep, torchrun, mpirun or srun.\n"
         "Exit codes: 0 done, 1 training failed, 2 bad input, 3 a rank was "
         "lost,\n"
         "143 stopped by SIGTERM after a checkpoint, 130 by SIGINT.\n"
         "\n"
         "example: lockstep-train dcgan data=fashion_mnist data.batch_size=16 "
         "trainer.max_epochs=1\n";
}

std::string list_text() {
  std::string text = "recipes:\n";
  for (const auto& entry : all_recipes()) {
    text += fmt::format("  {:<10} {}\n", entry.name, entry.summary);
    const auto groups = make_groups(entry);
    for (const auto& choice : groups.choices("experiment")) {
      text += fmt::format("  {:<10}   experiment={}\n", "", choice);
    }
  }
  text += "data sets:\n";
  for (const auto& name : data::dataset_names()) {
    text += fmt::format("  data={}\n", name);
  }
  return text +
         "trainers:\n  trainer=single\n  trainer=ddp\n"
         "  trainer=fsdp\n";
}

Result<std::string> recipe_help(const std::string& recipe) {
  LOCKSTEP_ASSIGN(const Entry* entry, find_recipe(recipe));
  std::string text =
      fmt::format("lockstep-train {}: {}\n\n", entry->name, entry->summary);
  text += config::help_text(entry->describe());
  text += "\ngroups:\n";
  const auto groups = make_groups(*entry);
  for (const auto& group : groups.names()) {
    text +=
        fmt::format("  {}={}\n", group, fmt::join(groups.choices(group), "|"));
  }
  return text + "  experiment=FILE.yaml sets many keys\n";
}

}  // namespace lockstep::recipes
