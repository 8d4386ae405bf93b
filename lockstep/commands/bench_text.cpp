#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/commands/bench_report.h"
#include "lockstep/commands/table.h"
#include "lockstep/record/plot.h"

namespace lockstep::commands {
namespace {

using economics::Standing;
using nlohmann::json;

std::string_view standing_word(const Probe& probe) {
  switch (probe.standing) {
    case Standing::kRacing:
      return "running";
    case Standing::kLost:
      return "stopped early";
    case Standing::kCapped:
      return "capped";
    case Standing::kEnough:
      return probe.finished ? "finished" : "measured";
    case Standing::kFailed:
      return "failed";
  }
  return "";
}

std::string short_seconds(double seconds) {
  return seconds > 0 ? format_duration(from_seconds(seconds)) : "-";
}

std::string count_text(double value) {
  return value <= 0      ? "-"
         : value < 10    ? fmt::format("{:.2f}", value)
         : value < 10000 ? fmt::format("{:.0f}", value)
                         : fmt::format("{:.4g}", value);
}

std::string money_text(double dollars) {
  return format_money(Money::from_dollars(dollars));
}

json quantity_json(const economics::Quantity& quantity) {
  return {
      {"value", quantity.value},
      {"low", quantity.low},
      {"high", quantity.high}};
}

json row_json(const BenchRow& row) {
  const Probe& probe = row.probe;
  const auto known = [](double value) {
    return value > 0 ? json(value) : json();
  };
  json one = {
      {"name", probe.candidate.name},
      {"nodes", probe.candidate.nodes},
      {"state", standing_word(probe)},
      {"reason", probe.reason},
      {"setup_seconds", probe.setup},
      {"launch_seconds", probe.launch},
      {"init_seconds", probe.figures.init},
      {"end_seconds", probe.end},
      {"closing_seconds", probe.figures.closing},
      {"epoch_ends", probe.figures.epoch_ends},
      {"total_steps", row.total_steps ? json(*row.total_steps) : json()},
      {"times_as_dear", known(row.times_as_dear)},
      {"samples_per_second", known(row.samples_per_second)},
      {"samples_per_dollar", known(row.samples_per_dollar)},
      {"iterations_per_dollar", known(row.iterations_per_dollar)},
      {"probe_seconds", probe.seconds},
      {"probe_dollars", probe.dollars},
      {"run", probe.run.string()},
      {"events", probe.events.string()},
      {"log", probe.log.string()}};
  one["dollars_per_hour"] =
      probe.candidate.price ? json(probe.candidate.price->dollars()) : json();
  one["price_source"] = probe.candidate.price_source;
  one["iteration"] = json();
  if (const auto& summary = probe.figures.iterations) {
    const auto interval = summary->estimate.interval();
    json phases = json::array();
    for (const auto& phase : summary->phases) {
      phases.push_back(
          {{"iterations", phase.end - phase.begin}, {"median", phase.median}});
    }
    one["iteration"] = {
        {"seconds", summary->estimate.mean},
        {"low", interval.low},
        {"high", interval.high},
        {"median", summary->median},
        {"drift", summary->drift},
        {"drifting", summary->drifting},
        {"seen", probe.figures.seen},
        {"used", summary->present.size()},
        {"samples", probe.figures.samples},
        {"compute", probe.figures.compute},
        {"communication", probe.figures.communication},
        {"phases", std::move(phases)},
        {"remarks", economics::remarks(*summary)}};
  }
  one["whole"] = json();
  if (row.whole) {
    one["whole"] = {{"seconds", quantity_json(row.whole->seconds)}};
    one["whole"]["dollars"] =
        row.whole->priced ? quantity_json(row.whole->dollars) : json();
  }
  return one;
}

// "0.1 + 0.2 + ... (12 in all)".
std::string sum_text(const std::vector<double>& values) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(values.size(), kShown); ++i) {
    text += fmt::format("{}{:.6g}", i == 0 ? "" : " + ", values[i]);
  }
  return values.size() > kShown
             ? fmt::format("{} + ... ({} in all)", text, values.size())
             : text;
}

void explain_row(std::string& text, const BenchRow& row) {
  const std::optional<double>& total_steps = row.total_steps;
  const Probe& probe = row.probe;
  text += fmt::format("{}\n", probe.candidate.name);
  if (!probe.events.empty()) {
    text += fmt::format("  from {}\n", probe.events.string());
  }
  text += fmt::format("  {}: {}\n", standing_word(probe), probe.reason);
  if (!probe.figures.iterations) {
    return;
  }
  const auto& summary = *probe.figures.iterations;
  const double mean = summary.estimate.mean;
  const auto interval = summary.estimate.interval();
  text += fmt::format(
      "  iteration = ({}) / {} = {:.6g} s: the last {} of {} steps{}, the "
      "slowest rank's total\n",
      sum_text(summary.present),
      summary.present.size(),
      mean,
      summary.present.size(),
      probe.figures.seen,
      summary.impossible + summary.jumps > 0 ? " that have a possible time"
                                             : "");
  text += fmt::format(
      "  interval = {:.6g} / e^(1.96 x {:.4f}) to {:.6g} x e^(1.96 x {:.4f}) "
      "= {:.6g} to {:.6g} s\n",
      mean,
      summary.estimate.spread,
      mean,
      summary.estimate.spread,
      interval.low,
      interval.high);
  for (const std::string& remark : economics::remarks(summary)) {
    text += fmt::format("  {}\n", remark);
  }
  if (probe.figures.samples > 0) {
    text += fmt::format(
        "  samples/s = {:.6g} samples of all ranks / {:.6g} s = {:.6g}\n",
        probe.figures.samples,
        mean,
        row.samples_per_second);
  }
  const double price =
      probe.candidate.price ? probe.candidate.price->dollars() : 0;
  if (price > 0) {
    text += fmt::format(
        "  iterations/$ = 3600 s / ({:.6g} s x {} x ${:.6g} by the {}) = "
        "{:.6g}\n",
        mean,
        probe.candidate.nodes,
        price,
        probe.candidate.price_source,
        row.iterations_per_dollar);
    if (row.samples_per_dollar > 0) {
      text += fmt::format(
          "  samples/$ = {:.6g} x {:.6g} = {:.6g}\n",
          row.iterations_per_dollar,
          probe.figures.samples,
          row.samples_per_dollar);
    }
    text += fmt::format(
        "  probe = {:.3f} s x {} x ${:.6g} / 3600 = {}\n",
        probe.seconds,
        probe.candidate.nodes,
        price,
        money_text(probe.dollars));
  }
  if (!row.whole || !total_steps) {
    return;
  }
  const double past = past_of(probe.figures, *total_steps);
  const double past_seconds =
      past > 0 ? past * probe.figures.past_seconds / probe.figures.past_steps
               : 0;
  const double ends = num_epoch_ends(probe.figures, *total_steps);
  const auto epoch_end = epoch_end_estimate(probe.figures);
  text += fmt::format(
      "  whole run = {}init {:.3f} + {:.3f} s for the first {} steps + {:.0f} "
      "x {:.6g} + {:.4g} x {:.3f} for the validation and checkpoint of an "
      "epoch's end ({} seen) + closing {:.3f} + end {:.3f} = {:.3f} s{}\n",
      probe.candidate.keeps_setup
          ? fmt::format("launch {:.3f} + ", probe.launch)
          : fmt::format("set-up {:.3f} + ", probe.setup),
      probe.figures.init,
      past_seconds,
      past,
      *total_steps - past,
      mean,
      ends,
      epoch_end ? epoch_end->mean : 0,
      probe.figures.epoch_ends.size(),
      probe.figures.closing,
      probe.end,
      row.whole->seconds.value,
      probe.candidate.keeps_setup
          ? fmt::format("; its set-up ({:.3f} s) is done", probe.setup)
          : "");
  if (row.whole->priced) {
    text += fmt::format(
        "  cost = {:.0f} s begun x {} x ${:.6g} / 3600 = {}\n",
        std::ceil(row.whole->seconds.value - 1e-9),
        probe.candidate.nodes,
        price,
        money_text(row.whole->dollars.value));
  }
}

}  // namespace

std::string bench_text(const BenchReport& report) {
  Table table(
      {"candidate",
       "set-up",
       "init",
       "iteration",
       "+-",
       "drift",
       "samples/s",
       "$/h",
       "samples/$",
       "iterations/$",
       "whole run",
       "cost",
       "probe",
       "state"});
  for (const BenchRow& row : report.rows) {
    const Probe& probe = row.probe;
    const auto& summary = probe.figures.iterations;
    const std::string width =
        summary ? fmt::format(
                      "{:.0f}%",
                      100 * (std::exp(1.96 * summary->estimate.spread) - 1))
                : "-";
    table.add(
        {probe.candidate.nodes > 1
             ? fmt::format(
                   "{} ({} nodes)", probe.candidate.name, probe.candidate.nodes)
             : probe.candidate.name,
         short_seconds(probe.setup),
         short_seconds(probe.figures.init),
         summary ? short_seconds(summary->estimate.mean) : "-",
         width,
         summary && summary->drifting
             ? fmt::format("{:+.2g}%", 100 * summary->drift)
             : "-",
         count_text(row.samples_per_second),
         probe.candidate.price
             ? money_text(
                   probe.candidate.price->dollars() * probe.candidate.nodes)
             : "-",
         count_text(row.samples_per_dollar),
         count_text(row.iterations_per_dollar),
         row.whole ? short_seconds(row.whole->seconds.value) : "-",
         row.whole && row.whole->priced ? money_text(row.whole->dollars.value)
                                        : "-",
         probe.candidate.price ? money_text(probe.dollars) : "-",
         fmt::format(
             "{} ({} iterations)", standing_word(probe), probe.figures.seen)});
  }
  std::string text = table.to_string() + "\n";
  for (const BenchRow& row : report.rows) {
    if (row.probe.standing == Standing::kFailed) {
      text +=
          fmt::format("{}: {}\n", row.probe.candidate.name, row.probe.reason);
    }
    if (row.probe.figures.iterations) {
      for (const auto& remark :
           economics::remarks(*row.probe.figures.iterations)) {
        text += fmt::format("{}: {}\n", row.probe.candidate.name, remark);
      }
    }
  }
  text += fmt::format("\nverdict    {}\n", report.verdict);
  if (report.priced) {
    text += fmt::format("probes     {}\n", money_text(report.dollars));
  }
  return text + fmt::format("directory  {}\n", report.folder.string());
}

json bench_json(const BenchReport& report) {
  json rows = json::array();
  for (const BenchRow& row : report.rows) {
    rows.push_back(row_json(row));
  }
  const auto name = [&](std::optional<size_t> index) {
    return index ? json(report.rows[*index].probe.candidate.name) : json();
  };
  return {
      {"job", report.job},
      {"candidates", std::move(rows)},
      {"cheapest", report.priced ? name(report.cheapest) : json()},
      {"fastest", name(report.fastest)},
      {"sure", report.sure},
      {"total_steps", report.total_steps ? json(*report.total_steps) : json()},
      {"probe_dollars", report.dollars},
      {"verdict", report.verdict},
      {"directory", report.folder.string()}};
}

std::string bench_svg(const BenchReport& report) {
  record::Bars bars;
  const bool samples = std::ranges::any_of(
      report.rows,
      [](const BenchRow& row) { return row.samples_per_second > 0; });
  const std::string unit = samples ? "samples" : "iterations";
  bars.parts = {unit};
  bars.title = fmt::format(
      "{}: {} {}", report.job, unit, report.priced ? "per dollar" : "a second");
  bars.x_label =
      fmt::format("{} {}", unit, report.priced ? "per dollar" : "a second");
  for (const BenchRow& row : report.rows) {
    const auto& summary = row.probe.figures.iterations;
    const double speed = !summary  ? 0
                         : samples ? row.samples_per_second
                                   : 1 / summary->estimate.mean;
    const double value = !report.priced ? speed
                         : samples      ? row.samples_per_dollar
                                        : row.iterations_per_dollar;
    bars.rows.push_back({row.probe.candidate.name, {value}});
  }
  return record::bars_svg(bars);
}

std::string explain_text(const BenchReport& report) {
  std::string text;
  for (const BenchRow& row : report.rows) {
    explain_row(text, row);
  }
  return text + report.verdict + "\n";
}

}  // namespace lockstep::commands
