#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/commands/costs.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

Result<int> show(const std::string& since, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(
      const Duration time, parse_duration(since).with_context("--since"));
  const double now = os::real_clock().unix_seconds();
  LOCKSTEP_ASSIGN(
      const auto costs, costs_since(settings, now - to_seconds(time)));
  Money sum;
  int unknown = 0;
  nlohmann::json runs = nlohmann::json::array();
  Table table({"run", "state", "started", "an hour", "cost", "price of"});
  for (const RunCost& one : costs) {
    sum = sum + one.cost.value_or(Money());
    unknown += one.cost ? 0 : 1;
    const launch::RunStateFile& state = one.state;
    runs.push_back(
        {{"id", state.id},
         {"state", state.state},
         {"started", state.started},
         {"dollars_per_hour",
          state.dollars_per_hour > 0 ? nlohmann::json(state.dollars_per_hour)
                                     : nlohmann::json()},
         {"cost",
          one.cost ? nlohmann::json(one.cost->dollars()) : nlohmann::json()},
         {"price_source", state.price_source},
         {"cluster", state.cluster}});
    table.add(
        {state.id,
         state.state,
         fmt::format(
             "{:%Y-%m-%d %H:%M}",
             fmt::localtime(static_cast<std::time_t>(state.started))),
         one.cost ? fmt::format("${:.4f}", state.dollars_per_hour) : "-",
         one.cost ? fmt::format("${:.4f}", one.cost->dollars()) : "unknown",
         state.price_source.empty() ? "-" : state.price_source});
  }
  if (context.format() == OutputFormat::kQuiet) {
    fmt::print("{:.4f}\n", sum.dollars());
    return 0;
  }
  if (context.format() == OutputFormat::kJson) {
    nlohmann::json all = {
        {"since_seconds", to_seconds(time)},
        {"cost", sum.dollars()},
        {"unknown", unknown},
        {"runs", std::move(runs)},
        {"cap", nullptr}};
    if (settings.cap) {
      all["cap"] = settings.cap->dollars();
    }
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  if (!table.empty()) {
    fmt::print("{}", table.to_string());
  }
  fmt::print(
      "${:.4f} in {}: {} runs{}{}\n",
      sum.dollars(),
      format_duration(time),
      costs.size(),
      unknown > 0 ? fmt::format(", {} of unknown price", unknown) : "",
      settings.cap ? fmt::format(
                         "; cap {} over {}",
                         format_money(*settings.cap),
                         format_duration(settings.cap_period))
                   : "");
  return 0;
}

}  // namespace

void add_cost(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("cost", "what all runs cost");
  verb->footer("Example: lockstep cost --since 30d");
  auto since = std::make_shared<std::string>("30d");
  verb->add_option("--since", *since, "runs that began in this time")
      ->type_name("D");
  add_runs_dir(*verb, context);
  set_action(
      *verb, context, [&context, since]() { return show(*since, context); });
}

}  // namespace lockstep::commands
