#include "lockstep/launch/verdict.h"

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

// How likely an end is a cause and not a consequence, for ends seen at the
// same moment: a crash tears connections, torn connections make the others
// exit with an error or abort.
constexpr int kCertain = 5;  // crashes and kills need no other reason

int weight_of(const RankExited& exit, bool consequence, bool said) {
  if (exit.out_of_memory) {
    return 6;
  }
  if (consequence) {
    return 0;
  }
  switch (exit.status.signal) {
    case 0:
      return said ? 4 : 3;
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
  const int weight = weight_of(exit, consequence, spoke);
  const bool same_moment =
      failure_ && (exit.batch == batch_ || failure_->host != host);
  const bool likelier = failure_ && !settled_ && !failure_->lost &&
                        !failure_->hang && weight > weight_ &&
                        (same_moment || failure_->consequence);
  if (failure_ && !likelier) {
    return;
  }
  failure_ = Failure{
      .rank = exit.rank,
      .host = host,
      .pid = exit.pid,
      .status = exit.status,
      .out_of_memory = exit.out_of_memory,
      .reason = spoke ? said->second.reason : "",
      .consequence = consequence,
      .certain = weight >= kCertain,
      .last_lines = exit.last_lines};
  batch_ = exit.batch;
  weight_ = weight;
}

void Verdict::take(const RankRefused& refused, const std::string& host) {
  if (!failure_) {
    failure_ = Failure{
        .rank = refused.rank,
        .host = host,
        .reason = refused.reason,
        .certain = true};
  }
}

void Verdict::take(const NodeLost& lost, const std::string& host) {
  // Ranks elsewhere may have missed those of the node before we missed it.
  if (!failure_ || (!failure_->certain && !settled_)) {
    failure_ = Failure{
        .lost = true, .host = host, .reason = lost.reason, .certain = true};
  }
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
  }
}

}  // namespace lockstep::launch
