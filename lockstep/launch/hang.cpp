#include "lockstep/launch/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;

constexpr size_t kMostAsked = 32;
constexpr Duration kAnswer = seconds(15);
constexpr Duration kExcuse = seconds(20);
constexpr Duration kWeSlept = seconds(2);
constexpr int kStopped = 100;

bool contains_any(const std::string& text, const auto& words) {
  return std::ranges::any_of(words, [&](const char* word) {
    return text.find(word) != std::string::npos;
  });
}

// Only the innermost frames say what a rank does now; every training script
// has a module called distributed further out.
bool waits_for_others(const std::string& stack) {
  static constexpr std::array kWords = {
      "all_reduce",
      "allreduce",
      "all_gather",
      "allgather",
      "reduce_scatter",
      "barrier",
      "broadcast",
      "nccl",
      "gloo",
      "c10d",
      "mpi_",
      "lockstep::collective",
      "processgroup",
      "tcpstore",
      "all_to_all"};
  constexpr int kInner = 10;
  size_t end = 0;
  for (int line = 0; line < kInner && end < stack.size(); ++line) {
    end = std::min(stack.find('\n', end), stack.size() - 1) + 1;
  }
  return contains_any(lower(stack.substr(0, end)), kWords);
}

bool is_busy(const RankPlace& place) {
  return place.state.starts_with("running") && !waits_for_others(place.stack);
}

}  // namespace

int suspicion(const RankPlace& place) {
  if (place.state.starts_with("stopped") || place.state.starts_with("traced")) {
    return kStopped;
  }
  if (waits_for_others(place.stack)) {
    return 0;
  }
  if (place.state.starts_with("waiting for a device")) {
    return 80;
  }
  const std::string state = lower(place.state);
  static constexpr std::array kSleeps = {"nanosleep", "pause", "sigsuspend"};
  if (contains_any(state, kSleeps)) {
    return 60;
  }
  static constexpr std::array kReads = {"pipe", "wait4", "do_wait", "nfs"};
  if (contains_any(state, kReads)) {
    return 40;
  }
  if (state.starts_with("running")) {
    return 30;
  }
  return place.state.empty() ? 20 : 10;
}

std::string Hang::to_string() const {
  std::string who =
      fmt::format("rank {} hangs on {} (pid {})", rank, host, pid);
  if (likely) {
    who = fmt::format(
        "no rank takes a step; rank {} on {} (pid {}) seems to be the cause",
        rank,
        host,
        pid);
  }
  std::string text = fmt::format(
      "{}: no {} for {}",
      who,
      phase.empty() ? "step" : "sign in phase '" + phase + "'",
      format_duration(
          std::chrono::duration_cast<std::chrono::milliseconds>(silent)));
  if (usual > Duration(0)) {
    text += fmt::format(" (usually {})", format_duration(usual));
  }
  if (others == 0) {
    text += fmt::format(", at step {}", step);
  } else if (ahead > step) {
    text += fmt::format(", at step {} while others are at {}", step, ahead);
  } else {
    text += fmt::format(", at step {} as all others", step);
  }
  if (!place.state.empty()) {
    text += "; " + place.state;
  }
  return text;
}

std::vector<std::string> Hang::details() const {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < place.stack.size()) {
    const size_t end = std::min(place.stack.find('\n', at), place.stack.size());
    lines.push_back(place.stack.substr(at, end - at));
    at = end + 1;
  }
  if (!place.missing.empty()) {
    lines.push_back(place.missing);
  }
  return lines;
}

void HangWatch::begin() {
  pace_.begin();
  state_ = State::kWatching;
  ranks_.clear();
  places_.clear();
  asked_.clear();
  waiting_.clear();
  excused_until_.reset();
  last_look_.reset();
  told_.reset();
}

void HangWatch::take(
    const Report& report,
    const std::string& host,
    os::Instant now) {
  if (const auto* started = std::get_if<RankStarted>(&report)) {
    if (started->rank >= 0) {
      ranks_[started->rank] = {host, started->pid};
      pace_.started(started->rank, now);
    }
  } else if (const auto* exited = std::get_if<RankExited>(&report)) {
    ranks_.erase(exited->rank);
    waiting_.erase(exited->rank);
    pace_.ended(exited->rank);
  } else if (const auto* event = std::get_if<RankEvent>(&report)) {
    pace_.take(event->event, now);
  } else if (const auto* place = std::get_if<RankPlace>(&report)) {
    places_[place->rank] = *place;
    waiting_.erase(place->rank);
  }
}

HangNews HangWatch::look(os::Instant now) {
  HangNews news;
  if (last_look_ && now - *last_look_ > kWeSlept) {
    pace_.forgive(now - *last_look_);
  }
  last_look_ = now;
  const std::optional<Stall> stall = pace_.check(now);
  if (!stall) {
    if (state_ == State::kTold) {
      news.resumed = fmt::format(
          "rank {} goes on: step {}", told_->rank, pace_.step_of(told_->rank));
    }
    state_ = State::kWatching;
    excused_until_.reset();
    return news;
  }
  if (state_ == State::kWatching &&
      (!excused_until_ || now >= *excused_until_)) {
    state_ = State::kAsking;
    give_up_ = now + kAnswer;
    places_.clear();
    asked_.clear();
    waiting_.clear();
  }
  if (state_ != State::kAsking) {
    return news;
  }
  // Ranks of one group pass their limits a little apart.
  ask(*stall, news);
  if (waiting_.empty() || now >= give_up_) {
    if (std::optional<Hang> hang = judge(*stall)) {
      state_ = State::kTold;
      told_ = hang;
      news.hang = std::move(hang);
    } else {
      state_ = State::kWatching;
      excused_until_ = now + kExcuse;
    }
  }
  return news;
}

void HangWatch::ask(const Stall& stall, HangNews& news) {
  const auto want = [&](int rank) {
    if (ranks_.contains(rank) && asked_.size() < kMostAsked &&
        asked_.insert(rank).second) {
      waiting_.insert(rank);
      news.inspect.push_back(rank);
    }
  };
  if (stall.behind) {
    want(stall.ranks.front().rank);
    return;
  }
  for (const Stall::Rank& rank : stall.ranks) {
    want(rank.rank);
  }
  // Ranks that never show a step may be the ones that the others wait for.
  for (const auto& [rank, facts] : ranks_) {
    if (pace_.step_of(rank) < 0) {
      want(rank);
    }
  }
}

std::optional<Hang> HangWatch::judge(const Stall& stall) const {
  int culprit = stall.ranks.front().rank;
  bool likely = false;
  if (!stall.behind && !places_.empty()) {
    int most = -1;
    int as_much = 0;
    const auto weigh = [&](int rank) {
      const auto found = places_.find(rank);
      const int weight = found == places_.end() ? 20 : suspicion(found->second);
      if (weight > most) {
        most = weight;
        culprit = rank;
        as_much = 0;
      }
      as_much += weight == most ? 1 : 0;
    };
    for (const Stall::Rank& rank : stall.ranks) {
      weigh(rank.rank);
    }
    for (const auto& [rank, place] : places_) {
      if (pace_.step_of(rank) < 0) {
        weigh(rank);
      }
    }
    likely = ranks_.size() > 1 && (as_much > 1 || most < kStopped);
  }
  const auto place = places_.find(culprit);
  const bool stopped =
      place != places_.end() && suspicion(place->second) == kStopped;
  if (!stall.firm && !stopped &&
      std::ranges::any_of(
          places_, [](const auto& entry) { return is_busy(entry.second); })) {
    return {};
  }
  const auto rank = ranks_.find(culprit);
  const auto overdue = std::ranges::find(
      stall.ranks, culprit, [](const Stall::Rank& one) { return one.rank; });
  const Stall::Rank& facts =
      overdue == stall.ranks.end() ? stall.ranks.front() : *overdue;
  Hang hang;
  hang.rank = culprit;
  hang.host = rank == ranks_.end() ? "" : rank->second.host;
  hang.pid = rank == ranks_.end() ? 0 : rank->second.pid;
  hang.step = facts.step;
  hang.ahead = stall.ahead;
  hang.silent = facts.silent;
  hang.usual = stall.usual;
  hang.phase = facts.phase;
  hang.place = place == places_.end() ? RankPlace{} : place->second;
  hang.likely = likely;
  hang.others = static_cast<int>(ranks_.size()) - 1;
  return hang;
}

}  // namespace lockstep::launch
