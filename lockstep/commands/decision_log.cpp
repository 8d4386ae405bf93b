#include "lockstep/commands/decision_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "lockstep/os/clock.h"
#include "lockstep/record/plot.h"
#include "lockstep/wire/event.h"

namespace lockstep::commands {

void DecisionLog::nodes(
    double seconds,
    const std::vector<std::string>& types,
    const std::vector<fleet::Node>& nodes) {
  types_ = types;
  Set set;
  set.seconds = seconds;
  for (const std::string& type : types) {
    set.counts.push_back(
        static_cast<int>(
            std::ranges::count(nodes, type, [](const fleet::Node& node) {
              return node.instance.type;
            })));
  }
  for (const fleet::Node& node : nodes) {
    set.dollars_per_hour += node.hourly.dollars();
  }
  sets_.push_back(std::move(set));
}

void DecisionLog::decision(
    double seconds,
    const std::string& action,
    const economics::Decision& decision) {
  rows_.push_back({seconds, action, decision.reason, decision.dollars});
}

void DecisionLog::append_cost(const record::RunDirectory& run, Money cost)
    const {
  wire::Event event;
  event.time = os::real_clock().unix_seconds();
  event.body = wire::Cost{cost.dollars(), 0};
  std::ofstream(run.events(), std::ios::app) << wire::to_json(event) << '\n';
}

void DecisionLog::write(const record::RunDirectory& run) const {
  if (sets_.empty()) {
    return;
  }
  const double end =
      std::max(sets_.back().seconds, rows_.empty() ? 0 : rows_.back().seconds);
  std::vector<record::Series> series;
  for (size_t type = 0; type < types_.size(); ++type) {
    record::Series line;
    line.name = types_[type];
    for (size_t i = 0; i < sets_.size(); ++i) {
      const double until = i + 1 < sets_.size() ? sets_[i + 1].seconds : end;
      for (const double x : {sets_[i].seconds, until}) {
        line.x.push_back(x);
        line.y.push_back(sets_[i].counts[type]);
      }
    }
    series.push_back(std::move(line));
  }
  record::PlotOptions options;
  options.title = "Nodes by type";
  options.x_label = "seconds since the start";
  options.y_label = "nodes";
  options.from_zero = true;
  std::error_code ignored;
  std::filesystem::create_directories(run.plots(), ignored);
  std::ofstream(run.plots() / "timeline.svg")
      << record::plot_svg(series, options);
  std::ofstream book(run.logbook(), std::ios::app);
  book << "\n## Decisions\n\n![Nodes by type](plots/timeline.svg)\n\n"
          "| after | action | why | cost of the change |\n|---|---|---|---|\n";
  for (const Row& row : rows_) {
    book << fmt::format(
        "| {:.0f} s | {} | {} | {} |\n",
        row.seconds,
        row.action,
        row.reason,
        row.dollars > 0 ? fmt::format("${:.4f}", row.dollars) : "");
  }
}

}  // namespace lockstep::commands
