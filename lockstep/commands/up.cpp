#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/command.h"

namespace lockstep::commands {
namespace {

struct UpOptions {
  std::string file;
  std::string region;
  std::string name;
  std::vector<std::string> overrides;
  bool yes = false;
};

Result<int> up(const UpOptions& options, const Context& context) {
  Interrupt interrupt;
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(config::Node node, config::load_yaml(options.file));
  for (const std::string& word : options.overrides) {
    LOCKSTEP_ASSIGN(const config::Node over, config::parse_override(word));
    node = config::merge(std::move(node), over);
  }
  LOCKSTEP_ASSIGN(fleet::Cluster cluster, fleet::read_cluster(node));
  if (!options.name.empty()) {
    LOCKSTEP_TRY(fleet::check_cluster_name(options.name));
    cluster.name = options.name;
  }
  LOCKSTEP_ASSIGN(cluster.region, region_of(cluster, options.region, settings));
  if (cluster.key.empty()) {
    cluster.key = settings.key;
  }
  if (!cluster.key.empty()) {
    cluster.key = key_file(cluster, "").string();  // wherever we are later
  }
  return bring_up(cluster, settings, options.yes, interrupt, context.format());
}

}  // namespace

void add_up(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("up", "machines of a cluster file, ready for ssh");
  verb->footer("Example: lockstep up examples/aws-cpu.yaml");
  auto options = std::make_shared<UpOptions>();
  verb->add_option("file", options->file, "a cluster file")
      ->required()
      ->type_name("CLUSTER.yaml");
  verb->add_option("overrides", options->overrides, "keys of the file")
      ->type_name("key=value");
  verb->add_option("--region", options->region, "instead of the file's")
      ->type_name("R");
  verb->add_option("--name", options->name, "instead of the file's")
      ->type_name("N");
  verb->add_flag("-y,--yes", options->yes, "do not ask");
  set_action(
      *verb, context, [&context, options]() { return up(*options, context); });
}

}  // namespace lockstep::commands
