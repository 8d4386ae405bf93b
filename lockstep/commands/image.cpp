#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/commands/command.h"
#include "lockstep/commands/node_sessions.h"

namespace lockstep::commands {
namespace {

struct BakeOptions {
  std::string cluster;
  std::string name;
  std::string node;
};

Result<int> bake(const BakeOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  const bool is_good =
      options.name.size() >= 3 && options.name.size() <= 128 &&
      std::ranges::all_of(options.name, [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("()[] ./-'@_").find(static_cast<char>(c)) !=
                   std::string_view::npos;
      });
  if (!is_good) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}' is no name of an image; accepted: 3 to 128 letters, digits "
            "and ()[] ./-'@_",
            options.name));
  }
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(options.cluster, "", settings, false));
  LOCKSTEP_ASSIGN(
      const auto nodes,
      fleet::live_nodes(*open.cloud->provider, options.cluster));
  if (nodes.empty()) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("cluster '{}' has no machines", options.cluster));
  }
  LOCKSTEP_ASSIGN(
      const auto chosen,
      chosen_nodes(
          nodes,
          options.node.empty() ? std::vector{nodes.front().name}
                               : std::vector{options.node}));
  LOCKSTEP_ASSIGN(
      const std::string id,
      open.cloud->provider->bake_image(
          chosen.front().instance.id,
          options.name,
          // Not the cluster's tag: an image is kept, and no audit ends it.
          {{"Name", options.name}, {"lockstep:image", options.cluster}}));
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        nlohmann::json({{"image", id},
                        {"name", options.name},
                        {"region", open.region},
                        {"node", chosen.front().name}})
            .dump(2));
  } else if (context.format() == OutputFormat::kQuiet) {
    fmt::print("{}\n", id);
  } else {
    fmt::print(
        "{} is being made of {}; it can be used in a few minutes:\n"
        "  image_id: {}\n",
        id,
        chosen.front().name,
        id);
  }
  return 0;
}

}  // namespace

void add_image(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("image", "images of prepared nodes");
  verb->require_subcommand(1);
  verb->footer("Example: lockstep image bake blue trained-base");
  CLI::App* bake_verb =
      verb->add_subcommand("bake", "an image of a node, for image_id");
  bake_verb->footer("Example: lockstep image bake blue trained-base");
  auto options = std::make_shared<BakeOptions>();
  bake_verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  bake_verb->add_option("name", options->name, "of the image")
      ->required()
      ->type_name("NAME");
  bake_verb->add_option("--node", options->node, "absent: the first")
      ->type_name("N");
  set_action(*bake_verb, context, [&context, options]() {
    return bake(*options, context);
  });
}

}  // namespace lockstep::commands
