#include "lockstep/launch/pace.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::launch {
namespace {

constexpr size_t kWindow = 64;  // steps that make the pace
constexpr int64_t kWarmUp = 5;  // steps that may take any time
constexpr int kManySteps = 20;  // usual steps in a row that nobody pauses
constexpr int kManyPauses = 3;  // times the longest pause so far
constexpr Duration kWarmUpStep = std::chrono::minutes(2);

Duration median(const std::deque<Duration>& gaps) {
  if (gaps.empty()) {
    return {};
  }
  std::vector<Duration> sorted(gaps.begin(), gaps.end());
  const auto middle =
      sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

// As a person would say it: without the longest pause. Reports come in
// batches, so the median may be next to nothing.
Duration usual(const std::deque<Duration>& gaps) {
  if (gaps.size() < 2) {
    return gaps.empty() ? Duration(0) : gaps.front();
  }
  Duration sum{};
  for (const Duration gap : gaps) {
    sum += gap;
  }
  return (sum - std::ranges::max(gaps)) / static_cast<int>(gaps.size() - 1);
}

bool is_training(const std::string& phase) {
  return phase.empty() || phase.starts_with("train");
}

}  // namespace

void Pace::begin() {
  for (const auto& [number, rank] : ranks_) {
    longest_ = std::max(longest_, rank.longest);
  }
  ranks_.clear();
  total_steps_ = 0;
}

void Pace::started(int rank, os::Instant now) {
  if (rank >= 0) {
    ranks_[rank].last = now;
  }
}

void Pace::ended(int rank) {
  ranks_.erase(rank);
}

void Pace::take(const wire::Event& event, os::Instant now) {
  const auto found = ranks_.find(event.rank);
  if (found == ranks_.end() ||
      std::holds_alternative<wire::Resource>(event.body)) {
    return;  // a thread of its own writes resource events, hang or not
  }
  Rank& rank = found->second;
  rank.told = true;
  if (rank.steps_seen > kWarmUp && !pauses(rank)) {
    rank.longest = std::max(rank.longest, Duration(now - rank.last));
  }
  rank.last = now;
  if (const auto* phase = std::get_if<wire::Phase>(&event.body)) {
    rank.phase = phase->name;
  } else if (const auto* init = std::get_if<wire::Init>(&event.body)) {
    if (const auto total = init->facts.find("total_steps");
        total != init->facts.end()) {
      total_steps_ = std::strtoll(total->second.c_str(), nullptr, 10);
    }
  } else if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    if (rank.steps_seen > 0) {
      rank.gaps.push_back(now - rank.last_step);
      if (rank.gaps.size() > kWindow) {
        rank.gaps.pop_front();
      }
    }
    ++rank.steps_seen;
    rank.step = done->step;
    rank.last_step = now;
  }
}

void Pace::forgive(Duration gap) {
  for (auto& [number, rank] : ranks_) {
    rank.last += gap;
    rank.last_step += gap;
  }
}

bool Pace::pauses(const Rank& rank) const {
  return !is_training(rank.phase) ||
         (total_steps_ > 0 && rank.step >= total_steps_);
}

Pace::Limits Pace::limits(const Rank& rank) const {
  if (rank.step < 0) {
    return {kFirstStep, kFirstStep};
  }
  const Duration longest =
      std::min(std::max(rank.longest, longest_) * kManyPauses, kFirstStep);
  if (pauses(rank)) {
    const Duration limit =
        std::max({after_.value_or(kLongPause), kLongPause, longest});
    return {limit, limit};
  }
  if (after_) {
    return {*after_, *after_};
  }
  const Duration slowest =
      rank.gaps.empty() ? Duration(0) : std::ranges::max(rank.gaps);
  const Duration by_pace = std::max(
      {kShortestHang,
       std::max(median(rank.gaps), usual(rank.gaps)) * kManySteps,
       slowest * kManyPauses,
       longest});
  if (rank.steps_seen <= kWarmUp) {
    const Duration limit =
        std::max({kWarmUpStep, by_pace, slowest * kManySteps});
    return {limit, limit};
  }
  return {by_pace, std::max(by_pace, kLongPause)};
}

std::optional<Stall> Pace::check(os::Instant now) const {
  Stall stall;
  std::optional<int64_t> lowest;
  bool overdue = false;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.told) {
      continue;
    }
    lowest = std::min(lowest.value_or(rank.step), rank.step);
    stall.ahead = std::max(stall.ahead, rank.step);
    const Limits limit = limits(rank);
    const Duration silent = now - rank.last;
    // Limits differ a little between ranks of one group that has stopped.
    if (silent <= limit.soft / 2) {
      continue;
    }
    overdue = overdue || silent > limit.soft;
    stall.firm = stall.firm || silent > limit.firm;
    stall.ranks.push_back(
        {number,
         std::max<int64_t>(0, rank.step),
         silent,
         is_training(rank.phase) ? "" : rank.phase});
  }
  if (!overdue) {
    return {};
  }
  // In a synchronous group all stop within a step of each other: who was heard
  // of last time the longest ago comes first, among equals in steps.
  std::ranges::stable_sort(stall.ranks, [](const auto& a, const auto& b) {
    return a.step != b.step ? a.step < b.step : a.silent > b.silent;
  });
  const Rank& first = ranks_.at(stall.ranks.front().rank);
  const auto as_low = std::ranges::count_if(ranks_, [&](const auto& entry) {
    return entry.second.told && entry.second.step <= first.step;
  });
  stall.behind =
      first.step == *lowest && as_low == 1 && stall.ahead > first.step;
  stall.usual = usual(first.gaps);
  return stall;
}

int64_t Pace::step_of(int rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? -1 : found->second.step;
}

}  // namespace lockstep::launch
