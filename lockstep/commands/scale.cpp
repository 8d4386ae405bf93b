#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "lockstep/base/nearest.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/command.h"

namespace lockstep::commands {
namespace {

struct ScaleOptions {
  std::string cluster;
  std::vector<std::string> counts;
  bool yes = false;
};

struct Count {
  std::string type;
  int number = 0;
};

Result<Count> parse_count(const std::string& text) {
  const size_t equal = text.find('=');
  Count count;
  count.type = text.substr(0, equal);
  const std::string number =
      equal == std::string::npos ? "" : text.substr(equal + 1);
  const auto read = std::from_chars(
      number.data(), number.data() + number.size(), count.number);
  if (count.type.empty() || read.ec != std::errc() ||
      read.ptr != number.data() + number.size() || count.number < 0 ||
      count.number > 1000) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}'; accepted: TYPE=N, as in c5.xlarge=4", text));
  }
  return count;
}

Result<int> scale(const ScaleOptions& options, const Context& context) {
  Interrupt interrupt;
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_TRY(fleet::check_cluster_name(options.cluster));
  LOCKSTEP_ASSIGN(auto cluster, known_cluster(options.cluster));
  if (!cluster) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format(
                   "no cluster '{}' was made on this machine", options.cluster))
        .with_fix("'lockstep up' makes one");
  }
  for (const std::string& text : options.counts) {
    LOCKSTEP_ASSIGN(const Count count, parse_count(text));
    auto group =
        std::ranges::find(cluster->groups, count.type, &fleet::NodeGroup::type);
    if (group == cluster->groups.end() && count.number == 0) {
      std::vector<std::string> there;
      std::ranges::transform(
          cluster->groups, std::back_inserter(there), &fleet::NodeGroup::type);
      return Error(
          ErrorCode::kNotFound,
          fmt::format(
              "'{}' has no {}; {}",
              options.cluster,
              count.type,
              suggest(count.type, there)));
    }
    if (group == cluster->groups.end()) {
      // A further type is set up as the first.
      fleet::NodeGroup more = cluster->groups.front();
      more.type = count.type;
      more.fallback.clear();
      more.bid.reset();
      cluster->groups.push_back(std::move(more));
      group = cluster->groups.end() - 1;
    }
    group->count = group->minimum = count.number;
  }
  if (cluster->num_nodes() == 0) {
    return Error(ErrorCode::kInvalidInput, "no node would be left")
        .with_fix(fmt::format("lockstep down {}", options.cluster));
  }
  return bring_up(*cluster, settings, options.yes, interrupt, context.format());
}

}  // namespace

void add_scale(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("scale", "more or fewer machines of a type");
  verb->footer("Example: lockstep scale blue c5.xlarge=4");
  auto options = std::make_shared<ScaleOptions>();
  verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  verb->add_option("counts", options->counts, "of each type")
      ->required()
      ->type_name("TYPE=N");
  verb->add_flag("-y,--yes", options->yes, "do not ask");
  set_action(*verb, context, [&context, options]() {
    return scale(*options, context);
  });
}

}  // namespace lockstep::commands
