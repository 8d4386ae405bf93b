#include "lockstep/launch/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <csignal>

namespace lockstep::launch {
namespace {

constexpr Duration kMoment = std::chrono::milliseconds(100);
constexpr Duration kLastWords = std::chrono::milliseconds(250);
constexpr Duration kTie = std::chrono::milliseconds(1);  // of last words

// How likely an end is a cause and not a consequence, for ends of one moment: a
// crash tears connections, torn connections make the others exit with an error
// or abort.
constexpr int kRefused = 7;  // it never ran
constexpr int kLost = 6;     // so is out of memory
constexpr int kCertain = 5;  // crashes and kills need no other reason

int weight_of(
    const RankExited& exit,
    bool consequence,
    bool said,
    bool blames_peer) {
  if (exit.out_of_memory) {
    return kLost;
  }
  if (consequence) {
    return 0;
  }
  switch (exit.status.signal) {
    case 0:
      return blames_peer ? 2 : said ? 4 : 3;
    case SIGABRT:
      return 2;
    case SIGTERM:
    case SIGPIPE:
    case SIGHUP:
      return 1;
    default:
      return kCertain;
  }
}

// A line without its numbers: one of progress is as the one before it.
std::string shape_of(const std::string& line) {
  std::string shape;
  for (const char c : line) {
    if (std::string_view("0123456789.+-").find(c) == std::string_view::npos) {
      shape += c;
    }
  }
  return shape;
}

bool ends_with_news(const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return false;
  }
  const std::string last = shape_of(lines.back());
  return std::none_of(
      lines.begin(), lines.end() - 1, [&](const std::string& line) {
        return shape_of(line) == last;
      });
}

os::Instant moment_of(const RankExited& exit) {
  const bool spoke = exit.spoke <= exit.ended &&
                     exit.ended - exit.spoke < kLastWords &&
                     ends_with_news(exit.last_lines);
  return spoke ? exit.spoke : exit.ended;
}

// As the C library, Gloo, NCCL and Python put it.
bool speaks_of_lost_peer(const std::vector<std::string>& lines) {
  return std::ranges::any_of(lines, [](std::string line) {
    std::ranges::transform(
        line, line.begin(), [](unsigned char c) { return std::tolower(c); });
    return std::ranges::any_of(
        std::to_array<const char*>(
            {"connection reset",
             "connection closed",
             "broken pipe",
             "remote process exited"}),
        [&](const char* words) {
          return line.find(words) != std::string::npos;
        });
  });
}

}  // namespace

std::string Failure::to_string() const {
  if (rank < 0 && lost) {
    return fmt::format("node {} was lost: {}", host, reason);
  }
  if (hang) {
    return reason;
  }
  const std::string who =
      rank == kSetupRank ? "setup" : fmt::format("rank {}", rank);
  if (pid == 0) {
    return fmt::format("{} did not start on {}: {}", who, host, reason);
  }
  std::string how = status.to_string();
  if (out_of_memory) {
    how = fmt::format("out of memory, {}", how);
  }
  return fmt::format(
      "{} failed on {} (pid {}): {}{}{}",
      who,
      host,
      pid,
      how,
      reason.empty() ? "" : ": ",
      reason);
}

void Verdict::take(int rank, const wire::Exit& said) {
  said_[rank] = said;
}

void Verdict::take(const RankExited& exit, const std::string& host) {
  if (exit.status.ok() || exit.was_stopped) {
    return;
  }
  // The trainer's code for "a peer is lost or does not answer".
  constexpr int kLostPeer = 3;
  const auto said = said_.find(exit.rank);
  const bool spoke = said != said_.end() && said->second.code != 0;
  const bool consequence =
      spoke && said->second.code == kLostPeer && exit.status.signal == 0;
  const bool blames_peer =
      exit.status.signal == 0 && speaks_of_lost_peer(exit.last_lines);
  const int weight = weight_of(exit, consequence, spoke, blames_peer);
  add(
      {{.rank = exit.rank,
        .host = host,
        .pid = exit.pid,
        .status = exit.status,
        .out_of_memory = exit.out_of_memory,
        .reason = spoke ? said->second.reason : "",
        .consequence = consequence,
        .blames_peer = blames_peer,
        .certain = weight >= kCertain,
        .last_lines = exit.last_lines},
       moment_of(exit),
       exit.ended,
       exit.keeper,
       exit.batch,
       weight});
}

void Verdict::take(const RankRefused& refused, const std::string& host) {
  add(
      {{.rank = refused.rank,
        .host = host,
        .reason = refused.reason,
        .certain = true},
       os::Instant::min(),
       os::Instant::min(),
       0,
       0,
       kRefused});
}

void Verdict::take(const NodeLost& lost, const std::string& host) {
  add(
      {{.lost = true, .host = host, .reason = lost.reason, .certain = true},
       lost.since,
       lost.since,
       -1,
       0,
       kLost});
}

bool Verdict::is_before(const Candidate& one, const Candidate& other) {
  const bool is_tie = one.at < other.at + kTie && other.at < one.at + kTie;
  return is_tie ? one.ended < other.ended : one.at < other.at;
}

bool Verdict::is_one_moment(const Candidate& first, const Candidate& other) {
  // A program that tears its connections on its way out may end after those
  // that miss it.
  if (first.failure.host == other.failure.host &&
      first.keeper == other.keeper && !first.failure.blames_peer) {
    return first.batch == other.batch;
  }
  return other.at < first.at + kMoment;
}

void Verdict::add(Candidate candidate) {
  if (settled_) {
    return;
  }
  candidates_.push_back(std::move(candidate));
  const auto is_consequence = [](const Candidate& one) {
    return one.failure.consequence;
  };
  const bool all = std::ranges::all_of(candidates_, is_consequence);
  const Candidate* first = nullptr;
  for (const Candidate& one : candidates_) {
    if ((all || !is_consequence(one)) &&
        (first == nullptr || is_before(one, *first))) {
      first = &one;
    }
  }
  const Candidate* best = first;
  for (const Candidate& one : candidates_) {
    if ((all || !is_consequence(one)) && is_one_moment(*first, one) &&
        (one.weight > best->weight ||
         (one.weight == best->weight && is_before(one, *best)))) {
      best = &one;
    }
  }
  failure_ = best->failure;
}

void Verdict::take(const Hang& hang) {
  if (!failure_) {
    failure_ = Failure{
        .rank = hang.rank,
        .host = hang.host,
        .pid = hang.pid,
        .reason = hang.to_string(),
        .certain = true,
        .hang = true,
        .last_lines = hang.details()};
    settle();  // what it does when it is ended says nothing
  }
}

}  // namespace lockstep::launch
