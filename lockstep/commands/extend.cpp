#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "lockstep/commands/command.h"
#include "lockstep/commands/node_sessions.h"

namespace lockstep::commands {
namespace {

struct ExtendOptions {
  std::string cluster;
  std::string time;
};

constexpr Duration kLongestLease = std::chrono::hours(24);

Result<int> extend(const ExtendOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const Duration time, parse_duration(options.time));
  if (time <= Duration(0) || time > kLongestLease) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}'; accepted: a duration of at most {}",
            options.time,
            format_duration(kLongestLease)));
  }
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(options.cluster, "", settings, false));
  LOCKSTEP_ASSIGN(const auto nodes, reachable_nodes(open));
  LOCKSTEP_TRY(
      fleet::renew_leases(
          *open.shell,
          nodes,
          time,
          os::Deadline::after(std::chrono::seconds(30))));
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        nlohmann::json({{"cluster", options.cluster},
                        {"nodes", nodes.size()},
                        {"seconds", to_seconds(time)}})
            .dump(2));
  } else if (context.format() == OutputFormat::kTable) {
    fmt::print(
        "{}: {} nodes stay for {} from now{}\n",
        options.cluster,
        nodes.size(),
        format_duration(time),
        open.spec->budget || open.spec->max_duration
            ? ", but not beyond budget and max_duration"
            : "");
  }
  return 0;
}

}  // namespace

void add_extend(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("extend", "keeps a cluster for a while, used or not");
  verb->footer("Example: lockstep extend blue 2h");
  auto options = std::make_shared<ExtendOptions>();
  verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  verb->add_option("time", options->time, "from now, at most a day")
      ->required()
      ->type_name("TIME");
  set_action(*verb, context, [&context, options]() {
    return extend(*options, context);
  });
}

}  // namespace lockstep::commands
