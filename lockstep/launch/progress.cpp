#include "lockstep/launch/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::launch {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr auto kPlain = std::chrono::seconds(5);
constexpr size_t kMostMetrics = 4;

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "nan";
}

std::string rate(double value) {
  return value >= 100 ? fmt::format("{:.0f} samples/s", value)
                      : fmt::format("{:.3g} samples/s", value);
}

// Losses first: they are what a person waits for.
std::vector<std::string> metric_parts(const LiveState& live) {
  std::vector<std::pair<bool, std::string>> named;
  for (const auto& [name, value] : live.metrics) {
    if (name == "samples_per_second") {
      continue;  // shown over all ranks, as measured here
    }
    named.emplace_back(
        name.find("loss") == std::string::npos,
        fmt::format("{} {}", name, number(value)));
  }
  std::ranges::stable_sort(named, {}, &std::pair<bool, std::string>::first);
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(named.size(), kMostMetrics); ++i) {
    parts.push_back(named[i].second);
  }
  return parts;
}

// What a progress bar overwrote is not shown again.
std::string printable(const std::string& line) {
  const size_t end = line.find_last_not_of('\r');
  if (end == std::string::npos) {
    return "";
  }
  const size_t start = line.find_last_of('\r', end);
  return start == std::string::npos ? line.substr(0, end + 1)
                                    : line.substr(start + 1, end - start);
}

}  // namespace

std::string progress_text(
    const LiveState& live,
    int world_size,
    Duration elapsed,
    std::optional<Money> cost) {
  std::vector<std::string> parts;
  if (live.any_iteration) {
    parts.push_back(fmt::format("epoch {}", live.epoch));
    parts.push_back(
        live.total_steps > 0
            ? fmt::format("step {}/{}", live.step, live.total_steps)
            : fmt::format("step {}", live.step));
  } else if (live.ranks_ended > 0) {
    parts.push_back(
        fmt::format("{} of {} ranks ended", live.ranks_ended, world_size));
  } else {
    parts.push_back(
        fmt::format("{} of {} ranks run", live.ranks_started, world_size));
  }
  if (!live.phase.empty() && live.phase != "train") {
    parts.push_back(live.phase);
  }
  std::ranges::move(metric_parts(live), std::back_inserter(parts));
  if (live.samples_per_second > 0) {
    parts.push_back(rate(live.samples_per_second));
  }
  parts.push_back(format_duration(
      elapsed >= std::chrono::seconds(1)
          ? Duration(std::chrono::floor<std::chrono::seconds>(elapsed))
          : Duration(std::chrono::floor<std::chrono::milliseconds>(elapsed))));
  if (cost) {
    parts.push_back(format_money(*cost));
  }
  // Whichever limit comes first.
  std::optional<double> left = live.seconds_left;
  if (live.total_steps > live.step && live.seconds_per_step > 0) {
    const double by_steps = static_cast<double>(live.total_steps - live.step) *
                            live.seconds_per_step;
    left = std::min(by_steps, left.value_or(by_steps));
  }
  if (left) {
    parts.push_back(
        "eta " +
        format_duration(
            std::chrono::ceil<std::chrono::seconds>(from_seconds(*left))));
  }
  return fmt::format("{}", fmt::join(parts, "  "));
}

void Progress::output(int rank, const std::string& line) {
  if (quiet_) {
    return;
  }
  const std::string text = printable(line);
  if (!prefix_) {
    terminal_.line(text);
  } else if (rank == kSetupRank) {
    terminal_.line("[setup] " + text);
  } else {
    terminal_.line(fmt::format("[r{}] {}", rank, text));
  }
}

void Progress::say(const std::string& text) {
  if (!quiet_) {
    terminal_.line(text);
  }
}

void Progress::update(
    const LiveState& live,
    int world_size,
    Duration elapsed,
    std::optional<Money> cost) {
  if (quiet_) {
    return;
  }
  const os::Instant now = clock_.now();
  const Duration pause =
      terminal_.is_terminal() ? Duration(kRedraw) : Duration(kPlain);
  if (!drawn_ && !terminal_.is_terminal()) {
    drawn_ = now;  // the first plain line comes after the first pause
    return;
  }
  if (drawn_ && now - *drawn_ < pause) {
    return;
  }
  drawn_ = now;
  const std::string text = progress_text(live, world_size, elapsed, cost);
  if (terminal_.is_terminal()) {
    terminal_.status(text);
  } else if (live.any_iteration && text != last_) {
    last_ = text;
    terminal_.line(text);
  }
}

}  // namespace lockstep::launch
