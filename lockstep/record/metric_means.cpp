#include "lockstep/record/metric_means.h"

#include <algorithm>

namespace lockstep::record {

void MetricMeans::take(const wire::Event& event) {
  if (const auto* decision = std::get_if<wire::Decision>(&event.body)) {
    generation_ += decision->action == "restart" ? 1 : 0;
    return;
  }
  const auto* metric = std::get_if<wire::Metric>(&event.body);
  if (metric == nullptr) {
    return;
  }
  Line& line = lines_[metric->step];
  line.epoch = metric->epoch;
  for (const auto& [name, value] : metric->values) {
    Cell& cell = line.cells[name];
    if (cell.generation != generation_) {
      // Ranks that are no longer there have no part in it either.
      cell = {generation_, {}};
    }
    const auto place = std::ranges::lower_bound(
        cell.values, event.rank, {}, &std::pair<int, double>::first);
    if (place != cell.values.end() && place->first == event.rank) {
      place->second = value;
    } else {
      cell.values.emplace(place, event.rank, value);
    }
  }
}

std::vector<MetricsTable::Row> MetricMeans::rows() const {
  std::vector<MetricsTable::Row> rows;
  rows.reserve(lines_.size());
  for (const auto& [step, line] : lines_) {
    MetricsTable::Row row{step, line.epoch, {}};
    for (const auto& [name, cell] : line.cells) {
      double sum = 0;
      for (const auto& [rank, value] : cell.values) {
        sum += value;
      }
      row.values[name] = sum / static_cast<double>(cell.values.size());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace lockstep::record
