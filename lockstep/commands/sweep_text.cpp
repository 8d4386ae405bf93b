#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/units.h"
#include "lockstep/commands/sweep_table.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;

std::string with_interval(double mean, const std::optional<double>& half) {
  const std::string text = fmt::format("{:.4g} s", mean);
  return half ? fmt::format("{} +- {:.2g}", text, *half) : text;
}

std::string speedup_words(const SweepPoint& point) {
  if (!point.speedup) {
    return "-";
  }
  std::string text = fmt::format("{:.3g}", *point.speedup);
  if (point.speedup_interval) {
    text += fmt::format(
        " ({:.3g} to {:.3g})",
        point.speedup_interval->low,
        point.speedup_interval->high);
  }
  return text;
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : "-";
}

std::string speed_words(const SweepPoint& point) {
  return point.speed.count() > 0 ? fmt::format("{:.4g}", point.speed.mean())
                                 : "-";
}

std::string markdown_cell(std::string text) {
  std::string cell;
  for (const char c : text) {
    cell += c == '|' ? std::string("\\|") : std::string(1, c == '\n' ? ' ' : c);
  }
  return cell;
}

// What the columns t0, t1, ... are, in the worst case of all repeats.
std::string rank_columns(const SweepTable& table) {
  bool iterations = false;
  bool life = false;
  for (const SweepPoint& point : table.points) {
    for (const Repeat& repeat : point.repeats) {
      for (const std::string& source : repeat.sources) {
        iterations = iterations || source == "iterations";
        life = life || source == "life";
      }
    }
  }
  if (life) {
    return "Ranks that tell no epochs stand in `t0`, `t1`, ... with the time "
           "from the start of the run to their end.";
  }
  return iterations ? "Where an epoch did not end, `t0`, `t1`, ... are the sum "
                      "of its iterations."
                    : "";
}

}  // namespace

std::string summary_markdown(const SweepTable& table) {
  std::string text = fmt::format("# Sweep {}\n\n", table.name);
  size_t done = 0;
  for (const SweepPoint& point : table.points) {
    done += std::min(
        point.repeats.size(), static_cast<size_t>(std::max(table.repeat, 0)));
  }
  text += fmt::format(
      "{} of {} repeats done, {} failed. {} scaling: {}. Cost: {}.\n\n",
      done,
      table.points.size() * static_cast<size_t>(table.repeat),
      table.failures.size(),
      table.scaling == Scaling::kWeak ? "Weak" : "Strong",
      table.scaling == Scaling::kWeak
          ? "every rank keeps its batch size"
          : "the batch of all ranks together stays, each gets its part",
      table.dollars > 0 ? format_money(Money::from_dollars(table.dollars))
                        : "no price is known");
  text += "![speed-up by ranks](speedup.svg)\n\n";
  text +=
      "| nodes | procs | configuration | repeats | failed | total | epoch 0, "
      "slowest rank | samples/s | speed-up | efficiency |\n"
      "|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const SweepPoint& point : table.points) {
    const Configuration& one = point.configuration;
    const bool any = !point.repeats.empty();
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        one.nodes,
        one.procs,
        markdown_cell(one.to_string()),
        point.repeats.size(),
        point.failures,
        any ? with_interval(point.total.mean(), point.ci95) : "-",
        any ? with_interval(
                  point.epoch.mean(), economics::half_width(point.epoch))
            : "-",
        speed_words(point),
        speedup_words(point),
        percent(point.efficiency));
  }
  text +=
      "\nMeans with 95% confidence intervals (Student's t over the repeats; "
      "Fieller's for the ratio). Speed-up: mean total of 1 x 1 over the mean "
      "total, times the work done against 1 x 1 where ranks tell their "
      "samples. Efficiency: speed-up by ranks. Totals are the launcher's, "
      "start-up and end counted.";
  if (const std::string note = rank_columns(table); !note.empty()) {
    text += " " + note;
  }
  text += "\n";
  if (!table.failures.empty()) {
    text +=
        "\n## Failures\n\nNot in any mean.\n\n"
        "| configuration | repeat | run | code | reason |\n"
        "|---|--:|---|--:|---|\n";
    for (const Repeat& failure : table.failures) {
      text += fmt::format(
          "| {} | {} | {} | {} | {} |\n",
          markdown_cell(failure.stem),
          failure.number,
          markdown_cell(failure.run),
          failure.exit_code,
          markdown_cell(failure.reason));
    }
  }
  text += fmt::format(
      "\n## Files\n\n"
      "`nnode-N_nproc-P_batch_size-B.csv`: a line a repeat; `speedup.csv`, "
      "`speedup.svg`, `failures.csv`; `repeats.jsonl`: what was done, the "
      "truth the others are made from; `runs/`: the run directories; `logs/`: "
      "what each `lockstep run` said.\n\n"
      "To go on after an interruption, or to try failed repeats again:\n\n"
      "```\n{}\n```\n",
      table.command);
  return text;
}

std::string sweep_text(const SweepTable& table) {
  Table rows(
      {"nodes",
       "procs",
       "batch",
       "repeats",
       "failed",
       "mean",
       "ci95",
       "speedup",
       "efficiency",
       "keys"});
  for (const SweepPoint& point : table.points) {
    const Configuration& one = point.configuration;
    std::string keys;
    for (const auto& [key, value] : one.keys) {
      keys += fmt::format("{}{}={}", keys.empty() ? "" : " ", key, value);
    }
    rows.add(
        {std::to_string(one.nodes),
         std::to_string(one.procs),
         one.batch_size == "0" ? "-" : one.batch_size,
         std::to_string(point.repeats.size()),
         std::to_string(point.failures),
         point.repeats.empty() ? "-"
                               : fmt::format("{:.4g} s", point.total.mean()),
         point.ci95 ? fmt::format("{:.2g} s", *point.ci95) : "-",
         point.speedup ? fmt::format("{:.3g}", *point.speedup) : "-",
         percent(point.efficiency),
         keys.empty() ? "-" : keys});
  }
  return rows.to_string();
}

json sweep_json(const SweepTable& table) {
  const auto number = [](const std::optional<double>& value) {
    return value ? json(*value) : json();
  };
  json points = json::array();
  for (const SweepPoint& point : table.points) {
    const Configuration& one = point.configuration;
    json totals = json::array();
    json ranks = json::array();
    json runs = json::array();
    for (const Repeat& repeat : point.repeats) {
      totals.push_back(repeat.total);
      ranks.push_back(repeat.ranks);
      runs.push_back(repeat.run);
    }
    json entry = {
        {"nodes", one.nodes},
        {"procs", one.procs},
        {"batch_size", one.batch_size},
        {"keys", json::object()},
        {"file", one.stem() + ".csv"},
        {"repeats", point.repeats.size()},
        {"failures", point.failures},
        {"totals", std::move(totals)},
        {"ranks", std::move(ranks)},
        {"runs", std::move(runs)},
        {"work", point.work}};
    for (const auto& [key, value] : one.keys) {
      entry["keys"][key] = value;
    }
    const bool any = !point.repeats.empty();
    entry["mean"] = any ? json(point.total.mean()) : json();
    entry["epoch_mean"] = any ? json(point.epoch.mean()) : json();
    entry["samples_per_second"] =
        point.speed.count() > 0 ? json(point.speed.mean()) : json();
    entry["ci95"] = number(point.ci95);
    entry["speedup"] = number(point.speedup);
    entry["efficiency"] = number(point.efficiency);
    entry["speedup_interval"] =
        point.speedup_interval
            ? json::array(
                  {point.speedup_interval->low, point.speedup_interval->high})
            : json();
    points.push_back(std::move(entry));
  }
  json failures = json::array();
  for (const Repeat& failure : table.failures) {
    failures.push_back(
        {{"configuration", failure.stem},
         {"repeat", failure.number},
         {"run", failure.run},
         {"exit_code", failure.exit_code},
         {"reason", failure.reason}});
  }
  return {
      {"name", table.name},
      {"scaling", to_string(table.scaling)},
      {"repeat", table.repeat},
      {"configurations", std::move(points)},
      {"failures", std::move(failures)},
      {"cost", table.dollars > 0 ? json(table.dollars) : json()}};
}

}  // namespace lockstep::commands
