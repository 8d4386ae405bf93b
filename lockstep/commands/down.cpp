#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/costs.h"

namespace lockstep::commands {
namespace {

struct DownOptions {
  std::string cluster;
  std::string region;
};

Result<int> down(const DownOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  const bool was_known =
      os::real_files().exists(clusters_folder() / options.cluster);
  LOCKSTEP_ASSIGN(
      OpenCluster open,
      open_cluster(options.cluster, options.region, settings, true));
  fleet::Fleet fleet(open.options());
  const auto cost = fleet.cost();
  LOCKSTEP_ASSIGN(
      const auto nodes,
      fleet::live_nodes(*open.cloud->provider, options.cluster));
  LOCKSTEP_TRY(fleet.release());
  // Of runs whose command died nobody else tells that they are over.
  if (const auto settled = settle_runs(settings.runs_dir, options.cluster);
      !settled) {
    log_warning(settled.error().to_string());
  }
  std::error_code ignored;
  if (!was_known) {
    std::filesystem::remove_all(open.folder, ignored);
  }
  if (!was_known && nodes.empty()) {
    log_warning(
        fmt::format(
            "nothing of a cluster '{}' was in {}",
            options.cluster,
            open.region));
  }
  if (context.format() == OutputFormat::kJson) {
    nlohmann::json told = {
        {"cluster", options.cluster},
        {"region", open.region},
        {"machines", nodes.size()},
        {"cost", nullptr}};
    if (cost && cost->known) {
      told["cost"] = cost->so_far.dollars();
    }
    fmt::print("{}\n", told.dump(2));
  } else if (context.format() == OutputFormat::kTable) {
    fmt::print(
        "{} is down: {} machine{} given back{}\n",
        options.cluster,
        nodes.size(),
        nodes.size() == 1 ? "" : "s",
        cost && cost->known
            ? fmt::format(", {} in all", format_money(cost->so_far))
            : "");
  }
  return 0;
}

}  // namespace

void add_down(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("down", "gives all machines of a cluster back");
  verb->footer("Example: lockstep down blue");
  auto options = std::make_shared<DownOptions>();
  verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  verb->add_option(
          "--region", options->region, "for a cluster that is not known here")
      ->type_name("R");
  set_action(*verb, context, [&context, options]() {
    return down(*options, context);
  });
}

}  // namespace lockstep::commands
