#include "lockstep/commands/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/commands/table.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

os::Path newest_picture(const os::Path& folder) {
  os::Path newest;
  fs::file_time_type time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const auto written = entry.last_write_time(gone);
    if (entry.path().extension() != ".png" || gone) {
      continue;
    }
    // Two in one tick of the clock: the later name.
    if (newest.empty() || written > time ||
        (written == time && entry.path() > newest)) {
      newest = entry.path();
      time = written;
    }
  }
  return newest;
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.5g}", value) : "nan";
}

std::string rank_table(const record::RunSummary& summary) {
  Table table(
      {"rank",
       "node",
       "iterations",
       "mean",
       "compute",
       "comm",
       "wait",
       "data",
       "memory",
       "end"});
  for (const auto& row : summary.ranks) {
    const double mean = row.iterations > 0
                            ? row.total / static_cast<double>(row.iterations)
                            : 0;
    std::string end = "-";
    if (row.exit_code) {
      end = *row.exit_code == 0 ? "ok" : fmt::format("code {}", *row.exit_code);
    }
    table.add(
        {std::to_string(row.rank),
         row.node,
         std::to_string(row.iterations),
         row.iterations > 0 ? format_duration(from_seconds(mean)) : "-",
         percent(row.compute, row.total),
         percent(row.communication, row.total),
         percent(row.wait, row.total),
         percent(row.data, row.total),
         row.peak_resident_bytes > 0
             ? format_bytes(
                   Bytes{static_cast<uint64_t>(row.peak_resident_bytes)})
             : "-",
         end});
  }
  return table.to_string();
}

// In synchronous training all iterations last the same: the slowest rank is
// the one that waits least.
std::string slowest(const record::RunSummary& summary) {
  if (summary.ranks.size() < 2) {
    return "";
  }
  const auto waits = [](const auto& row) {
    return row.total > 0 ? row.wait / row.total : 0;
  };
  const auto [worst, best] =
      std::ranges::minmax_element(summary.ranks, {}, waits);
  constexpr double kWorthTelling = 0.02;
  if (waits(*best) - waits(*worst) < kWorthTelling) {
    return "";
  }
  return fmt::format(
      "rank {} on {}: waits {} of its time, rank {} {}",
      worst->rank,
      worst->node,
      percent(worst->wait, worst->total),
      best->rank,
      percent(best->wait, best->total));
}

}  // namespace

std::string Report::state_name() const {
  return state ? state->state : std::string(to_string(summary.outcome));
}

Result<Report> make_report(const record::RunDirectory& run) {
  Report report;
  LOCKSTEP_ASSIGN(report.summary, record::summarise(run));
  LOCKSTEP_ASSIGN(report.state, launch::read_run_state(run));
  if (report.summary.program.empty() && report.state) {
    report.summary.program = report.state->program;
  }
  report.directory = run.path();
  report.picture = newest_picture(run.samples());
  if (os::real_files().exists(run.logbook())) {
    report.logbook = run.logbook();
  }
  report.seconds = report.summary.end - report.summary.start;
  if (report.state) {
    const double end = report.state->ended > 0
                           ? report.state->ended
                           : os::real_clock().unix_seconds();
    if (report.state->ended > 0 || report.state->state == "running") {
      report.seconds = end - report.state->started;
    }
    if (report.state->dollars_per_hour > 0) {
      report.cost = Money::from_dollars(
          report.state->dollars_per_hour * report.seconds / 3600);
    }
  }
  return report;
}

std::string report_text(const Report& report) {
  const record::RunSummary& summary = report.summary;
  std::vector<std::pair<std::string, std::string>> lines;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) {
      lines.emplace_back(name, value);
    }
  };
  add("run", report.directory.filename().string());
  add("state", report.state_name());
  add("reason", report.state ? report.state->detail : summary.failure);
  add("program", summary.program);
  add("ranks",
      fmt::format(
          "{} on {} node{}",
          summary.world_size,
          std::max<size_t>(1, summary.nodes.size()),
          summary.nodes.size() > 1 ? "s" : ""));
  add("duration", format_duration(from_seconds(report.seconds)));
  if (summary.starts > 1) {
    add("starts", std::to_string(summary.starts));
  }
  if (summary.steps > 0) {
    add("steps",
        fmt::format(
            "{} ({} epoch{})",
            summary.steps,
            summary.epochs,
            summary.epochs == 1 ? "" : "s"));
  }
  if (summary.samples_per_second > 0) {
    add("speed",
        fmt::format(
            "{:.1f} samples/s, {} an iteration",
            summary.samples_per_second,
            format_duration(from_seconds(summary.iteration_seconds))));
  }
  for (const auto& [name, value] : summary.last_metrics) {
    add(name, number(value));
  }
  if (report.cost) {
    add("cost",
        fmt::format(
            "{} at {} an hour ({})",
            format_money(*report.cost),
            format_money(Money::from_dollars(report.state->dollars_per_hour)),
            report.state->price_source));
    if (summary.samples > 0 && report.cost->nanos() > 0) {
      add("",
          fmt::format(
              "{:.0f} samples a dollar",
              static_cast<double>(summary.samples) / report.cost->dollars()));
    }
  }
  if (!summary.checkpoints.empty()) {
    add("checkpoint", summary.checkpoints.back().path);
  }
  add("slowest", slowest(summary));
  if (!report.picture.empty()) {
    add("picture", report.picture.string());
  }
  if (!report.logbook.empty()) {
    add("logbook", report.logbook.string());
  }
  add("directory", report.directory.string());
  size_t width = 0;
  for (const auto& [name, value] : lines) {
    width = std::max(width, name.size());
  }
  std::string text;
  for (const auto& [name, value] : lines) {
    text += fmt::format("{:<{}}  {}\n", name, width, value);
  }
  if (summary.steps > 0) {
    text += "\n" + rank_table(summary);
  }
  return text;
}

json report_json(const Report& report) {
  const record::RunSummary& summary = report.summary;
  json ranks = json::array();
  for (const auto& row : summary.ranks) {
    json one = {
        {"rank", row.rank},
        {"node", row.node},
        {"iterations", row.iterations},
        {"samples", row.samples},
        {"data", row.data},
        {"compute", row.compute},
        {"communication", row.communication},
        {"wait", row.wait},
        {"total", row.total},
        {"peak_resident_bytes", row.peak_resident_bytes},
        {"mean_cpu", row.mean_cpu},
        {"exit_reason", row.exit_reason}};
    one["exit_code"] = row.exit_code ? json(*row.exit_code) : json();
    ranks.push_back(std::move(one));
  }
  json result = {
      {"id", report.directory.filename().string()},
      {"directory", report.directory.string()},
      {"state", report.state_name()},
      {"detail", report.state ? report.state->detail : summary.failure},
      {"program", summary.program},
      {"world_size", summary.world_size},
      {"nodes", summary.nodes},
      {"seconds", report.seconds},
      {"starts", summary.starts},
      {"steps", summary.steps},
      {"epochs", summary.epochs},
      {"samples", summary.samples},
      {"samples_per_second", summary.samples_per_second},
      {"iteration_seconds", summary.iteration_seconds},
      {"init_seconds", summary.init_seconds},
      {"metrics", summary.last_metrics},
      {"ranks", std::move(ranks)},
      {"picture", report.picture.string()},
      {"logbook", report.logbook.string()}};
  result["exit_code"] = report.state ? json(report.state->exit_code) : json();
  result["cost"] = report.cost ? json(report.cost->dollars()) : json();
  result["dollars_per_hour"] =
      report.state && report.state->dollars_per_hour > 0
          ? json(report.state->dollars_per_hour)
          : json();
  return result;
}

void print_report(const Report& report, OutputFormat format) {
  std::string text;
  switch (format) {
    case OutputFormat::kTable:
      text = report_text(report);
      break;
    case OutputFormat::kJson:
      text = report_json(report).dump(
                 2, ' ', false, json::error_handler_t::replace) +
             "\n";
      break;
    case OutputFormat::kQuiet:
      text = report.directory.string() + "\n";
      break;
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void add_report(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("report", "how a run went");
  verb->footer("Example: lockstep report last --output json");
  auto name = std::make_shared<std::string>("last");
  verb->add_option("run", *name, "id, the start of one, or 'last'")
      ->type_name("RUN");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, name]() -> Result<int> {
    LOCKSTEP_ASSIGN(const Settings settings, context.settings());
    LOCKSTEP_ASSIGN(const auto run, find_run(settings, *name));
    LOCKSTEP_ASSIGN(const Report report, make_report(run));
    print_report(report, context.format());
    return 0;
  });
}

}  // namespace lockstep::commands
