#include "lockstep/commands/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/record/plot.h"

namespace lockstep::commands {
namespace {

// Ranks pad their part of a data set, so two passes over one differ by a few
// samples; more than that is other work.
constexpr double kPadding = 0.05;

std::string exact(double value) {
  return fmt::format("{:.9g}", value);
}

std::string exact(const std::optional<double>& value) {
  return value ? exact(*value) : "";
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) {
    return text;
  }
  std::string cell = "\"";
  for (const char c : text) {
    cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return cell + "\"";
}

std::optional<double> mean_samples(const SweepPoint& point) {
  economics::Moments samples;
  for (const Repeat& repeat : point.repeats) {
    if (repeat.samples <= 0) {
      return std::nullopt;
    }
    samples.add(repeat.samples);
  }
  return point.repeats.empty() ? std::nullopt : std::optional(samples.mean());
}

SweepPoint gather(
    const Configuration& configuration,
    const SweepJournal& journal) {
  SweepPoint point;
  point.configuration = configuration;
  const std::string stem = configuration.stem();
  point.failures = journal.failures(stem);
  for (const Repeat* repeat : journal.done(stem)) {
    point.repeats.push_back(*repeat);
    point.total.add(repeat->total);
    point.epoch.add(*std::ranges::max_element(repeat->ranks));
    if (repeat->samples_per_second > 0) {
      point.speed.add(repeat->samples_per_second);
    }
  }
  point.ci95 = economics::half_width(point.total);
  return point;
}

void compare(SweepPoint& point, const SweepPoint& baseline) {
  if (point.repeats.empty() || baseline.repeats.empty()) {
    return;
  }
  const auto ours = mean_samples(point);
  const auto theirs = mean_samples(baseline);
  if (ours && theirs) {
    point.work = *ours / *theirs;
    if (std::abs(point.work - 1) < kPadding) {
      point.work = 1;
    }
  }
  point.speedup = baseline.total.mean() / point.total.mean() * point.work;
  point.efficiency = *point.speedup / point.configuration.ranks();
  if (&point == &baseline) {
    return;  // against itself it is 1, whatever the spread
  }
  if (auto interval = economics::ratio_interval(baseline.total, point.total)) {
    // Few repeats may not rule out less than nothing; reason does.
    point.speedup_interval = {
        std::max(interval->low, 0.0) * point.work, interval->high * point.work};
  }
}

std::string batch_words(const Configuration& configuration) {
  std::string text;
  if (configuration.batch_size != "0") {
    text += ", batch " + configuration.batch_size;
  }
  for (const auto& [key, value] : configuration.keys) {
    text += fmt::format(", {}={}", key, value);
  }
  return text;
}

}  // namespace

SweepTable make_sweep_table(
    const std::vector<Configuration>& grid,
    const SweepJournal& journal) {
  SweepTable table;
  std::map<std::string, size_t> places;
  for (const Configuration& configuration : grid) {
    places[configuration.stem()] = table.points.size();
    table.points.push_back(gather(configuration, journal));
  }
  for (SweepPoint& point : table.points) {
    const auto found = places.find(point.configuration.baseline_stem());
    if (found != places.end()) {
      compare(point, table.points[found->second]);
    }
  }
  for (const Repeat& repeat : journal.repeats()) {
    if (repeat.failed()) {
      table.failures.push_back(repeat);
    }
  }
  table.dollars = journal.dollars();
  return table;
}

std::string repeats_csv(const SweepPoint& point) {
  std::string text = "total";
  for (int rank = 0; rank < point.configuration.ranks(); ++rank) {
    text += fmt::format(",t{}", rank);
  }
  text += "\n";
  for (const Repeat& repeat : point.repeats) {
    text += exact(repeat.total);
    for (const double seconds : repeat.ranks) {
      text += "," + exact(seconds);
    }
    text += "\n";
  }
  return text;
}

std::string speedup_csv(const SweepTable& table) {
  std::string text = "nodes,procs,batch_size,mean,ci95,speedup,efficiency";
  if (!table.points.empty()) {
    for (const auto& [key, value] : table.points[0].configuration.keys) {
      text += "," + csv_cell(key);
    }
  }
  text += "\n";
  for (const SweepPoint& point : table.points) {
    const Configuration& one = point.configuration;
    text += fmt::format(
        "{},{},{},{},{},{},{}",
        one.nodes,
        one.procs,
        csv_cell(one.batch_size),
        point.repeats.empty() ? "" : exact(point.total.mean()),
        exact(point.ci95),
        exact(point.speedup),
        exact(point.efficiency));
    for (const auto& [key, value] : one.keys) {
      text += "," + csv_cell(value);
    }
    text += "\n";
  }
  return text;
}

std::string failures_csv(const SweepTable& table) {
  std::string text = "configuration,repeat,run,exit_code,reason,time\n";
  for (const Repeat& failure : table.failures) {
    text += fmt::format(
        "{},{},{},{},{},{:.3f}\n",
        csv_cell(failure.stem),
        failure.number,
        csv_cell(failure.run),
        failure.exit_code,
        csv_cell(failure.reason),
        failure.time);
  }
  return text;
}

std::string speedup_svg(const SweepTable& table) {
  std::vector<std::string> names;
  std::map<std::string, record::Series> lines;
  double most = 1;
  for (const SweepPoint& point : table.points) {
    const Configuration& one = point.configuration;
    most = std::max(most, static_cast<double>(one.ranks()));
    if (!point.speedup) {
      continue;
    }
    const std::string name = fmt::format(
        "{} node{}{}", one.nodes, one.nodes == 1 ? "" : "s", batch_words(one));
    if (!lines.contains(name)) {
      names.push_back(name);
    }
    record::Series& line = lines[name];
    line.name = name;
    // In the order of ranks: a line must not go back.
    const auto x = static_cast<double>(one.ranks());
    const auto at = std::ranges::upper_bound(line.x, x) - line.x.begin();
    line.x.insert(line.x.begin() + at, x);
    line.y.insert(line.y.begin() + at, *point.speedup);
    const auto interval = point.speedup_interval.value_or(
        economics::Interval{*point.speedup, *point.speedup});
    line.low.insert(line.low.begin() + at, interval.low);
    line.high.insert(line.high.begin() + at, interval.high);
  }
  std::vector<record::Series> series;
  record::Series ideal{"ideal", {1, most}, {1, most}};
  ideal.reference = true;
  series.push_back(std::move(ideal));
  for (const std::string& name : names) {
    series.push_back(lines[name]);
  }
  return record::plot_svg(
      series,
      {.title = fmt::format(
           "Speed-up of {} ({} scaling)", table.name, to_string(table.scaling)),
       .x_label = "ranks (nodes x processes)",
       .y_label = "speed-up over one process; bars: 95% confidence",
       .from_zero = true,
       .height = 440});
}

Result<void> write_sweep_files(
    const SweepTable& table,
    const os::Path& folder) {
  os::FileSystem& files = os::real_files();
  for (const SweepPoint& point : table.points) {
    if (!point.repeats.empty()) {
      LOCKSTEP_TRY(files.write_atomic(
          folder / (point.configuration.stem() + ".csv"), repeats_csv(point)));
    }
  }
  LOCKSTEP_TRY(files.write_atomic(folder / "speedup.csv", speedup_csv(table)));
  LOCKSTEP_TRY(files.write_atomic(folder / "speedup.svg", speedup_svg(table)));
  LOCKSTEP_TRY(
      files.write_atomic(folder / "failures.csv", failures_csv(table)));
  return files.write_atomic(folder / "summary.md", summary_markdown(table));
}

}  // namespace lockstep::commands
