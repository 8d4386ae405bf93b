#include "lockstep/commands/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/commands/table.h"
#include "lockstep/launch/redaction.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {
namespace {

using launch::Job;

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

}  // namespace

std::string repeat_command(const Job& job, const Context& context) {
  return "lockstep " + launch::shown_line(job, context.words);
}

std::string program_name(const Job& job, const std::vector<std::string>& argv) {
  if (job.train.kind() == config::Node::Kind::kNull) {
    std::string line = launch::shown_line(job, argv);
    std::ranges::replace(line, '\n', ' ');
    return line;
  }
  return "lockstep-train " + argv[1];
}

std::string headline(
    const std::string& id,
    int world_size,
    size_t hosts,
    const std::string& program) {
  return fmt::format(
      "{}: {} rank{}{} of {}",
      id,
      world_size,
      world_size == 1 ? "" : "s",
      hosts > 0 ? fmt::format(" on {} host{}", hosts, hosts == 1 ? "" : "s")
                : "",
      shortened(program));
}

void print_plan(
    const ResolvedJob& priced,
    const launch::RankPlan& plan,
    const std::vector<std::string>& argv,
    OutputFormat format) {
  const Job& job = priced.job;
  const std::string yaml = launch::job_yaml(job);
  const std::string command = launch::shown_line(job, argv);
  std::optional<Money> hour;
  if (priced.price) {
    hour = *priced.price * static_cast<double>(plan.nodes.size());
  }
  const auto cap = launch::cap_of(job, hour);
  if (format == OutputFormat::kJson) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const auto& slot : plan.slots) {
      ranks.push_back(
          {{"rank", slot.rank},
           {"node", plan.nodes[static_cast<size_t>(slot.node)].host},
           {"local_rank", slot.local_rank}});
    }
    nlohmann::json result = {
        {"job", yaml}, {"command", command}, {"ranks", std::move(ranks)}};
    result["dollars_per_hour"] =
        hour ? nlohmann::json(hour->dollars()) : nlohmann::json();
    std::puts(
        result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
            .c_str());
    return;
  }
  if (format == OutputFormat::kQuiet) {
    return;
  }
  const launch::Environment wanted = launch::common_envs(job);
  fmt::print("{}\ncommand: {}\n\n", yaml, command);
  Table table({"rank", "node", "host", "local_rank", "OMP_NUM_THREADS"});
  for (const auto& slot : plan.slots) {
    const auto variables =
        launch::rank_environment(plan, slot, {}, os::environment(), wanted);
    table.add(
        {std::to_string(slot.rank),
         std::to_string(slot.node),
         plan.nodes[static_cast<size_t>(slot.node)].host,
         std::to_string(slot.local_rank),
         variables.at("OMP_NUM_THREADS")});
  }
  fmt::print("{}\n", table.to_string());
  if (!hour) {
    fmt::print("cost: no price is known (--price, resources.price)\n");
  } else if (cap) {
    fmt::print(
        "cost: {} an hour ({}), at most {} by {}\n",
        format_money(*hour),
        priced.source,
        format_money(*hour * (to_seconds(cap->end) / 3600)),
        cap->reason);
  } else {
    fmt::print(
        "cost: {} an hour ({}), no cap\n", format_money(*hour), priced.source);
  }
}

}  // namespace lockstep::commands
