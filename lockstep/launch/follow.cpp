#include "lockstep/launch/follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/console_file.h"
#include "lockstep/launch/live.h"
#include "lockstep/launch/masks.h"
#include "lockstep/launch/tail.h"
#include "lockstep/record/event_log.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(20);    // at files on this machine
constexpr Duration kRound = milliseconds(500);  // of one update of a mirror
constexpr Duration kAgain = milliseconds(500);  // after the head was not there
constexpr size_t kBlock = 1 << 18;

class Follower {
 public:
  Follower(
      const record::RunDirectory& run,
      Mirror* mirror,
      Console& console,
      const FollowOptions& options)
      : run_(run),
        mirror_(mirror),
        console_(console),
        options_(options),
        masks_(Masks::read(run)),
        said_(run),
        events_(run.events()) {}

  Result<RunStateFile> watch(const std::function<Wish()>& wish) {
    while (true) {
      const Wish now = wish();
      if (now == Wish::kLeave) {
        return state_;
      }
      if (now != Wish::kNothing) {
        LOCKSTEP_TRY(stop(now == Wish::kKill));
      }
      LOCKSTEP_ASSIGN(const bool complete, look());
      if (head_lost_) {
        return state_;
      }
      if (!complete && !reached_) {
        os::real_clock().sleep_for(kAgain);
        continue;
      }
      if (!started_ && (complete || options_.from_start)) {
        start_tails();
      }
      const bool ended = !state_.is_running();
      show();
      if (ended && complete) {
        show_rest();
        return state_;
      }
      if (mirror_ == nullptr) {
        os::real_clock().sleep_for(kLook);
      }
    }
  }

 private:
  // True when everything that was written is in our files.
  Result<bool> look() {
    if (mirror_ == nullptr) {
      LOCKSTEP_ASSIGN(const auto state, read_run_state(run_));
      if (!state) {
        return Error(
            ErrorCode::kInvalidInput,
            fmt::format("run {} was not started by 'lockstep run'", run_.id()));
      }
      state_ = *state;
      return true;
    }
    const Result<bool> complete = mirror_->update(os::Deadline::after(kRound));
    if (!complete) {
      if (complete.error().code() != ErrorCode::kUnavailable &&
          complete.error().code() != ErrorCode::kTimeout) {
        return complete;
      }
      if (reached_) {
        console_.say(
            fmt::format(
                "lockstep: {}; trying again (the run goes on)",
                complete.error().to_string()));
      }
      reached_ = false;
      note_lost_head();
      return false;
    }
    if (!reached_) {
      console_.say("lockstep: the head answers again");
    }
    reached_ = true;
    state_ = mirror_->state();
    return complete;
  }

  void note_lost_head() {
    const std::string head = mirror_->state().head_host;
    const std::string why = options_.gone ? options_.gone() : "";
    if (!why.empty()) {
      head_lost_ = true;
      state_ = mirror_->state();
      state_.state = "lost";
      state_.detail = fmt::format(
          "node {} was lost: {}; what came here before is in {}",
          head,
          why,
          run_.path().string());
      return;
    }
    const std::string other = options_.witness ? options_.witness() : "";
    if (other.empty()) {
      return;
    }
    head_lost_ = true;
    state_ = mirror_->state();
    state_.state = "lost";
    state_.detail = fmt::format(
        "node {} was lost: the head does not answer while {} does; its ranks "
        "elsewhere end by themselves. When it is back, 'lockstep attach {}' "
        "fetches what it left",
        head,
        other,
        run_.id());
  }

  Result<void> stop(bool now) {
    if (mirror_ != nullptr) {
      return mirror_->stop(now);
    }
    LOCKSTEP_TRY(signal_run(state_, now));
    return {};
  }

  void start_tails() {
    started_ = true;
    tail(kSetupRank, run_.path() / "ranks" / "setup.log");
    add_ranks();
  }

  // The number of ranks is told by the state, and may come later than us.
  void add_ranks() {
    if (!started_ || !options_.show_output) {
      return;
    }
    if (options_.rank) {
      tail(*options_.rank, run_.rank_log(*options_.rank));
      return;
    }
    const int last = options_.all_ranks ? state_.world_size : 1;
    for (int rank = static_cast<int>(ranks_); rank < last; ++rank) {
      tail(rank, run_.rank_log(rank));
      ranks_ = static_cast<size_t>(rank) + 1;
    }
  }

  void tail(int rank, const os::Path& log) {
    const auto found = tails_.try_emplace(rank, log);
    if (found.second && !options_.from_start) {
      found.first->second.skip(0);
    }
  }

  void show() {
    said_.show(console_, state_.head_directory, run_.path().string());
    read_events();
    add_ranks();
    size_t room = console_.room();
    for (auto& [rank, one] : tails_) {
      if (room == 0) {
        break;
      }
      const size_t before = std::min<uint64_t>(one.left(), room);
      for (const std::string& line : one.read(std::min(room, kBlock))) {
        console_.output(rank, masks_.apply(line));
      }
      room -= std::min(room, before);
    }
    const double elapsed =
        (state_.ended > 0 ? state_.ended : os::real_clock().unix_seconds()) -
        state_.started;
    std::optional<Money> cost;
    if (state_.dollars_per_hour > 0) {
      cost = Money::from_dollars(state_.dollars_per_hour * elapsed / 3600);
    }
    console_.update(
        live_.state(),
        state_.world_size,
        from_seconds(std::max(0.0, elapsed)),
        cost);
  }

  void read_events() {
    // A record that cannot be read must not end the watching.
    (void)events_
        .poll([&](const wire::Event& event, const std::string&) {
          if (std::holds_alternative<wire::Init>(event.body) &&
              event.rank < 0) {
            live_.restart();
            for (int rank = 0; rank < state_.world_size; ++rank) {
              live_.rank_started();
            }
          } else if (std::holds_alternative<wire::Exit>(event.body)) {
            live_.rank_ended();
          }
          live_.take(event);
        })
        .has_value();
  }

  void show_rest() {
    const auto left = [&] {
      uint64_t bytes = 0;
      for (auto& [rank, one] : tails_) {
        bytes += one.left();
      }
      return bytes;
    };
    while (left() > 0 && console_.wait_for_room()) {
      show();
    }
    for (auto& [rank, one] : tails_) {
      for (const std::string& line : one.rest()) {
        console_.output(rank, masks_.apply(line));
      }
    }
    if (const uint64_t bytes = left(); bytes > 0) {
      console_.say(
          fmt::format(
              "{} of output are not shown here; see {}",
              format_bytes(Bytes{bytes}),
              (run_.path() / "ranks").string()));
    }
  }

  const record::RunDirectory& run_;
  Mirror* mirror_;
  Console& console_;
  FollowOptions options_;
  Masks masks_;
  ConsoleReader said_;
  record::EventReader events_;
  LiveTracker live_;
  RunStateFile state_;
  std::map<int, Tail> tails_;  // by rank
  size_t ranks_ = 0;           // that have a tail
  bool started_ = false;
  bool reached_ = true;
  bool head_lost_ = false;
};

}  // namespace

Result<RunStateFile> follow(
    const record::RunDirectory& run,
    Mirror* mirror,
    Console& console,
    const FollowOptions& options,
    const std::function<Wish()>& wish) {
  return Follower(run, mirror, console, options).watch(wish);
}

}  // namespace lockstep::launch
