#include "lockstep/economics/iterations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/economics/robust.h"

namespace lockstep::economics {
namespace {

constexpr double kJump = 1000;       // x median
constexpr double kSureTrend = 3;     // standard deviations
constexpr double kLeastDrift = 0.1;  // over all that was seen
// Fewer say nothing about a trend.
constexpr size_t kLeastForTrend = 8;

// Those that can be times, by their places; single giants only are left out,
// since a phase of them would be real.
std::vector<size_t> usable(
    std::span<const double> seconds,
    IterationSummary& summary) {
  std::vector<size_t> kept;
  std::vector<double> values;
  for (size_t i = 0; i < seconds.size(); ++i) {
    if (std::isfinite(seconds[i]) && seconds[i] > 0) {
      kept.push_back(i);
      values.push_back(seconds[i]);
    } else {
      ++summary.impossible;
    }
  }
  const double giant = kJump * median(values);
  const auto giants =
      std::ranges::count_if(values, [&](double one) { return one > giant; });
  if (kept.size() >= 3 && giants <= static_cast<long>(kept.size() / 10 + 1)) {
    std::erase_if(kept, [&](size_t i) { return seconds[i] > giant; });
    summary.jumps = static_cast<size_t>(giants);
  }
  return kept;
}

}  // namespace

std::optional<IterationSummary> sum_up(
    std::span<const double> seconds,
    const Caution& caution) {
  IterationSummary summary;
  summary.seen = seconds.size();
  const std::vector<size_t> places = usable(seconds, summary);
  if (places.empty()) {
    return std::nullopt;
  }
  std::vector<double> kept;
  for (const size_t place : places) {
    kept.push_back(seconds[place]);
  }
  summary.phases = find_phases(kept);
  // The first iteration alone is no phase: it is always left out.
  if (summary.phases.size() > 1 && summary.phases[0].end == 1) {
    summary.phases.erase(summary.phases.begin());
    summary.phases[0].begin = 0;
  }
  // The first iteration of all pays for what is made once.
  const size_t begin =
      kept.size() > 1 ? std::max<size_t>(summary.phases.back().begin, 1) : 0;
  summary.present.assign(kept.begin() + static_cast<long>(begin), kept.end());
  summary.roles.assign(seconds.size(), IterationSummary::Role::kUnused);
  for (size_t i = 0; i < places.size(); ++i) {
    summary.roles[places[i]] = i < begin ? IterationSummary::Role::kPast
                                         : IterationSummary::Role::kPresent;
  }
  summary.estimate =
      *estimate(std::span<const double>(summary.present), caution);
  summary.median = median(summary.present);
  std::vector<double> logs;
  logs.reserve(summary.present.size());
  for (const double one : summary.present) {
    logs.push_back(std::log(one));
  }
  summary.drift = theil_sen(logs);
  summary.drifting =
      logs.size() >= kLeastForTrend && std::abs(trend(logs)) > kSureTrend &&
      std::abs(summary.drift) * static_cast<double>(logs.size()) > kLeastDrift;
  return summary;
}

std::vector<std::string> remarks(const IterationSummary& summary) {
  std::vector<std::string> lines;
  if (summary.seen == 1) {
    lines.emplace_back(
        "one iteration only: its time may be off by a factor of two");
  }
  if (summary.impossible > 0) {
    lines.push_back(
        fmt::format(
            "{} of {} iterations have no possible time (not above 0, or no "
            "number): left out",
            summary.impossible,
            summary.seen));
  }
  if (summary.jumps > 0) {
    lines.push_back(
        fmt::format(
            "{} of {} iterations last a thousand times the median: left out, "
            "the clock jumped",
            summary.jumps,
            summary.seen));
  }
  if (summary.phases.size() > 1) {
    std::string medians;
    for (const LevelPhase& phase : summary.phases) {
      medians += fmt::format(
          "{}{:.3g} s x {}",
          medians.empty() ? "" : ", then ",
          phase.median,
          phase.end - phase.begin);
    }
    lines.push_back(
        fmt::format(
            "the time of an iteration changed ({}): the last phase counts",
            medians));
  }
  if (summary.drifting) {
    lines.push_back(
        fmt::format(
            "iterations go on getting {} by {:.2g}% each: what the whole run "
            "takes "
            "is not settled by these",
            summary.drift > 0 ? "slower" : "faster",
            100 * std::abs(summary.drift)));
  }
  return lines;
}

}  // namespace lockstep::economics
