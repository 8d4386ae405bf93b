#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/commands/report.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;
using RankRow = record::RunSummary::RankRow;

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.5g}", value) : "nan";
}

// Of one iteration.
double mean_of(double sum, const RankRow& row) {
  return row.iterations > 0 ? sum / static_cast<double>(row.iterations) : 0;
}

// "12 ms (80.1%)": the mean of an iteration and its share.
std::string part(double sum, const RankRow& row) {
  if (row.iterations == 0) {
    return "-";
  }
  return fmt::format(
      "{} ({})",
      format_duration(from_seconds(mean_of(sum, row))),
      percent(sum, row.total));
}

// Iterations of other programs may lack the split: then all is compute.
bool has_split(const record::RunSummary& summary) {
  return std::ranges::any_of(summary.ranks, [](const RankRow& row) {
    return row.communication > 0 || row.wait > 0 || row.data > 0;
  });
}

std::string rank_table(const record::RunSummary& summary) {
  Table table(
      {"rank",
       "node",
       "iterations",
       "mean",
       "compute",
       "communication",
       "wait",
       "data",
       "memory",
       "end"});
  for (const RankRow& row : summary.ranks) {
    std::string end = "-";
    if (row.exit_code) {
      end = *row.exit_code == 0 ? "ok" : fmt::format("code {}", *row.exit_code);
    }
    table.add(
        {std::to_string(row.rank),
         row.node,
         std::to_string(row.iterations),
         row.iterations > 0
             ? format_duration(from_seconds(mean_of(row.total, row)))
             : "-",
         part(row.compute, row),
         part(row.communication, row),
         part(row.wait, row),
         part(row.data, row),
         row.peak_resident_bytes > 0
             ? format_bytes(
                   Bytes{static_cast<uint64_t>(row.peak_resident_bytes)})
             : "-",
         end});
  }
  return table.to_string();
}

// "rank 1 on n2: computes 80 ms an iteration, the others 60 ms (1.33x)".
std::string slowest_words(const SlowestRank& slowest, bool split) {
  return fmt::format(
      "rank {} on {}: {} {} an iteration, the others {} ({:.2f}x)",
      slowest.rank,
      slowest.node,
      split ? "computes" : "takes",
      format_duration(from_seconds(slowest.compute)),
      format_duration(from_seconds(slowest.others)),
      slowest.others > 0 ? slowest.compute / slowest.others : 1);
}

// " (n1, n2)"; one name or many say nothing.
std::string node_names(const record::RunSummary& summary) {
  constexpr size_t kMost = 8;
  if (summary.nodes.size() < 2 || summary.nodes.size() > kMost) {
    return "";
  }
  return fmt::format(" ({})", fmt::join(summary.nodes, ", "));
}

}  // namespace

std::optional<SlowestRank> slowest_rank(const record::RunSummary& summary) {
  // In synchronous training every iteration lasts as long as the slowest
  // rank's: only its own computation tells a slow rank.
  const RankRow* worst = nullptr;
  std::vector<double> others;
  for (const RankRow& row : summary.ranks) {
    if (row.iterations > 0 &&
        (worst == nullptr ||
         mean_of(row.compute, row) > mean_of(worst->compute, *worst))) {
      worst = &row;
    }
  }
  if (worst == nullptr) {
    return std::nullopt;
  }
  for (const RankRow& row : summary.ranks) {
    if (row.iterations > 0 && &row != worst) {
      others.push_back(mean_of(row.compute, row));
    }
  }
  if (others.empty()) {
    return std::nullopt;
  }
  const auto middle = others.begin() + static_cast<long>(others.size() / 2);
  std::ranges::nth_element(others, middle);
  SlowestRank slowest;
  slowest.rank = worst->rank;
  slowest.node = worst->node;
  slowest.compute = mean_of(worst->compute, *worst);
  slowest.others = *middle;
  return slowest;
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
          "{} on {} node{}{}",
          summary.world_size,
          std::max<size_t>(1, summary.nodes.size()),
          summary.nodes.size() > 1 ? "s" : "",
          node_names(summary)));
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
  if (const auto slowest = slowest_rank(summary)) {
    add("slowest", slowest_words(*slowest, has_split(summary)));
  }
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
  for (const RankRow& row : summary.ranks) {
    const auto share = [&](double sum) {
      return row.total > 0 ? sum / row.total : 0;
    };
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
    one["mean"] = {
        {"data", mean_of(row.data, row)},
        {"compute", mean_of(row.compute, row)},
        {"communication", mean_of(row.communication, row)},
        {"wait", mean_of(row.wait, row)},
        {"total", mean_of(row.total, row)}};
    one["share"] = {
        {"data", share(row.data)},
        {"compute", share(row.compute)},
        {"communication", share(row.communication)},
        {"wait", share(row.wait)}};
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
  result["slowest"] = json();
  if (const auto slowest = slowest_rank(summary)) {
    result["slowest"] = {
        {"rank", slowest->rank},
        {"node", slowest->node},
        {"compute", slowest->compute},
        {"others", slowest->others}};
  }
  result["exit_code"] = report.state && report.state->ended > 0
                            ? json(report.state->exit_code)
                            : json();
  result["cost"] = report.cost ? json(report.cost->dollars()) : json();
  result["dollars_per_hour"] =
      report.state && report.state->dollars_per_hour > 0
          ? json(report.state->dollars_per_hour)
          : json();
  return result;
}

}  // namespace lockstep::commands
