#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/base/nearest.h"
#include "lockstep/commands/command.h"
#include "lockstep/fetch/datasets.h"
#include "lockstep/launch/terminal.h"

namespace lockstep::commands {
namespace {

struct GetOptions {
  std::string name, to, source = "auto", from;
  bool force = false;
};

Result<int> get(const GetOptions& options, const Context& context) {
  const auto names = fetch::dataset_names();
  if (std::ranges::find(names, options.name) == names.end()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "no data set '{}'; {}",
            options.name,
            suggest(options.name, names)));
  }
  const bool quiet = context.format() == OutputFormat::kQuiet;
  launch::Terminal terminal(STDERR_FILENO);
  fetch::DatasetOptions fetched;
  fetched.to = options.to;
  fetched.from = options.from;
  fetched.force = options.force;
  LOCKSTEP_ASSIGN(fetched.source, fetch::parse_dataset_source(options.source));
  fetched.say = [&](const std::string& text) {
    if (!quiet) {
      terminal.line(text);
    }
  };
  fetched.progress = [&](const std::string& file, uint64_t now, uint64_t all) {
    if (!quiet) {
      terminal.status(
          all > 0 ? fmt::format(
                        "{}  {} of {}",
                        file,
                        format_bytes(Bytes{now}),
                        format_bytes(Bytes{all}))
                  : fmt::format("{}  {}", file, format_bytes(Bytes{now})));
    }
    return true;
  };
  LOCKSTEP_ASSIGN(const auto result, fetch::get_dataset(options.name, fetched));
  terminal.status("");
  terminal.drain();
  switch (context.format()) {
    case OutputFormat::kQuiet:
      fmt::print("{}\n", result.folder.string());
      break;
    case OutputFormat::kJson:
      fmt::print(
          "{}\n",
          nlohmann::json({{"name", options.name},
                          {"folder", result.folder.string()},
                          {"files", result.files},
                          {"source", result.source},
                          {"bytes", result.bytes},
                          {"already", result.already}})
              .dump(2));
      break;
    case OutputFormat::kTable:
      fmt::print(
          "{}: {} in {} ({})\n",
          options.name,
          format_bytes(Bytes{result.bytes}),
          result.folder.string(),
          result.already ? "was there" : result.source);
      break;
  }
  return 0;
}

}  // namespace

void add_data(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("data", "data sets");
  verb->require_subcommand(1);
  verb->footer("Example: lockstep data get fashion_mnist");
  CLI::App* get_verb = verb->add_subcommand("get", "fetch a data set");
  get_verb->footer("Example: lockstep data get cifar10 --to data/cifar10");
  auto options = std::make_shared<GetOptions>();
  get_verb->add_option("name", options->name, "cifar10, mnist, fashion_mnist")
      ->required()
      ->type_name("NAME");
  get_verb->add_option("--to", options->to, "folder; default: the cache")
      ->type_name("DIR");
  get_verb
      ->add_option("--source", options->source, "auto, official or registry")
      ->type_name("S");
  get_verb->add_option("--from", options->from, "address of a mirror")
      ->type_name("URL");
  get_verb->add_flag("--force", options->force, "also when it is there");
  set_action(*get_verb, context, [&context, options]() {
    return get(*options, context);
  });
}

}  // namespace lockstep::commands
