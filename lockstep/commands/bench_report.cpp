#include "lockstep/commands/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/economics/race.h"

namespace lockstep::commands {
namespace {

using economics::Standing;

BenchRow make_row(Probe probe, std::optional<double> total_steps) {
  BenchRow row;
  row.total_steps = total_steps;
  const ProbeFigures& figures = probe.figures;
  const double hourly =
      probe.candidate.price
          ? probe.candidate.price->dollars() * probe.candidate.nodes
          : 0;
  if (figures.iterations) {
    const double mean = figures.iterations->estimate.mean;
    row.samples_per_second = figures.samples / mean;
    if (hourly > 0) {
      row.iterations_per_dollar = 3600 / (mean * hourly);
      row.samples_per_dollar = row.iterations_per_dollar * figures.samples;
    }
    if (auto work = whole_work(figures, total_steps)) {
      work->end += probe.end;
      const economics::Machine machine{
          .name = probe.candidate.name,
          .dollars_per_hour =
              probe.candidate.price ? probe.candidate.price->dollars() : 0,
          .setup = probe.candidate.keeps_setup ? probe.launch : probe.setup};
      row.whole = economics::predict(machine, probe.candidate.nodes, *work);
    }
  }
  row.probe = std::move(probe);
  return row;
}

// Steps before the phase that its prediction stands on; 0: there is one only.
double steps_before_phase(const Probe& probe) {
  const auto& iterations = probe.figures.iterations;
  return iterations && iterations->phases.size() > 1 ? probe.figures.past_steps
                                                     : 0;
}

std::string times_text(double ratio) {
  return ratio < 1.995 ? fmt::format("{:.0f}% more", 100 * (ratio - 1))
                       : fmt::format("{:.1f} times as much", ratio);
}

std::string missing_prices(const BenchReport& report) {
  std::string names;
  for (const BenchRow& row : report.rows) {
    if (!row.probe.candidate.price) {
      names += (names.empty() ? "" : ", ") + row.probe.candidate.name;
    }
  }
  return names;
}

std::string whole_text(const BenchRow& row) {
  if (!row.whole) {
    return "; how many iterations the whole run has is not known: give "
           "--total-steps";
  }
  std::string text = fmt::format(
      "; the whole run takes about {}",
      format_duration(from_seconds(row.whole->seconds.value)));
  if (row.whole->priced) {
    text += fmt::format(
        " and costs {} ({} to {})",
        format_money(Money::from_dollars(row.whole->dollars.value)),
        format_money(Money::from_dollars(row.whole->dollars.low)),
        format_money(Money::from_dollars(row.whole->dollars.high)));
  }
  return text;
}

std::string make_verdict(const BenchReport& report) {
  if (!report.cheapest) {
    std::string text = "no candidate showed an iteration";
    for (const BenchRow& row : report.rows) {
      text +=
          fmt::format("; {}: {}", row.probe.candidate.name, row.probe.reason);
    }
    return text;
  }
  const BenchRow& best = report.rows[*report.cheapest];
  const std::string& name = best.probe.candidate.name;
  std::string text;
  if (!report.priced) {
    text = fmt::format(
        "{} is the fastest; which is the cheapest is not known without the "
        "price of {}",
        report.rows[*report.fastest].probe.candidate.name,
        missing_prices(report));
    return text + whole_text(report.rows[*report.fastest]);
  }
  const BenchRow* next = nullptr;
  for (const BenchRow& row : report.rows) {
    if (&row != &best && row.iterations_per_dollar > 0) {
      next = &row;
      break;
    }
  }
  if (next == nullptr) {
    text = report.rows.size() == 1
               ? fmt::format("{} alone was measured", name)
               : fmt::format("{} is the only one that could be measured", name);
  } else {
    const double ratio = next->times_as_dear;
    // Who was stopped early saw fewer steps than its row's rival.
    const std::string over = best.probe.figures.seen != next->probe.figures.seen
                                 ? ", over the steps that both have seen"
                                 : "";
    text = report.sure
               ? fmt::format(
                     "{} is the cheapest: {} for a dollar than on {}{}",
                     name,
                     times_text(ratio),
                     next->probe.candidate.name,
                     over)
               : fmt::format(
                     "{} and {} are too close to call; {} looks cheaper by "
                     "{:.0f}%{}",
                     name,
                     next->probe.candidate.name,
                     name,
                     100 * (ratio - 1),
                     over);
    if (report.fastest != report.cheapest) {
      text += fmt::format(
          "; {} is the fastest",
          report.rows[*report.fastest].probe.candidate.name);
    }
  }
  return text + whole_text(best);
}

}  // namespace

BenchReport make_bench_report(
    std::string job,
    std::vector<Probe> probes,
    std::optional<double> total_steps,
    const os::Path& folder) {
  BenchReport report;
  report.job = std::move(job);
  report.folder = folder;
  report.total_steps = total_steps;
  for (const Probe& probe : probes) {
    report.dollars += probe.dollars;
    report.priced = report.priced && probe.candidate.price.has_value();
    if (!report.total_steps) {
      report.total_steps = probe.figures.total_steps;
    }
  }
  const std::vector<economics::Racer> racers =
      as_racers(probes, report.priced, 0);
  const auto first = economics::cheapest(racers);
  const auto quickest = economics::fastest(racers);
  std::vector<size_t> order(probes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  const auto dear = [&](size_t i) {
    return first ? times_as_dear(probes[i], probes[*first], report.priced) : 0;
  };
  const auto rank = [&](size_t i) {
    return std::tuple(
        first != i,
        !racers[i].iteration,
        racers[i].standing == Standing::kFailed,
        dear(i));
  };
  std::ranges::stable_sort(order, {}, rank);
  std::vector<double> ratios;
  for (const size_t i : order) {
    ratios.push_back(dear(i));
  }
  const double unseen = first ? steps_before_phase(probes[*first]) : 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (first == order[i]) {
      report.cheapest = i;
    }
    if (quickest == order[i]) {
      report.fastest = i;
    }
    // More ranks may need fewer steps: each probe's own count is of it alone.
    const auto& told = probes[order[i]].figures.total_steps;
    const auto total = total_steps ? total_steps
                       : told      ? told
                                   : report.total_steps;
    report.rows.push_back(make_row(std::move(probes[order[i]]), total));
    report.rows.back().times_as_dear = ratios[i];
    // One that was stopped before the phase that counts says nothing about it.
    if (static_cast<double>(report.rows.back().probe.figures.seen) <= unseen) {
      report.rows.back().whole.reset();
    }
  }
  report.sure = true;
  for (size_t i = 0; first && i < racers.size(); ++i) {
    constexpr double kSure = 1.96;
    if (i != *first && racers[i].iteration &&
        racers[i].standing != Standing::kLost &&
        economics::cheaper_by(racers[*first], racers[i]) < kSure) {
      report.sure = false;
    }
  }
  report.verdict = make_verdict(report);
  return report;
}

Result<void> write_bench_files(const BenchReport& report) {
  os::FileSystem& files = os::real_files();
  LOCKSTEP_TRY(files.make_directories(report.folder));
  const std::string json = bench_json(report).dump(
      2, ' ', false, nlohmann::json::error_handler_t::replace);
  LOCKSTEP_TRY(files.write_atomic(report.folder / "bench.json", json + "\n"));
  LOCKSTEP_TRY(
      files.write_atomic(report.folder / "bench.svg", bench_svg(report)));
  return files.write_atomic(
      report.folder / "explain.txt", explain_text(report));
}

}  // namespace lockstep::commands
