#include "lockstep/launch/verdict.h"

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

// How likely an end is a cause and not a consequence, for ends seen at the
// same moment: a crash tears connections, torn connections make the others
// exit with an error or abort.
int weight_of(const RankExited& exit, const std::string& reason) {
  if (exit.out_of_memory) {
    return 6;
  }
  if (reason.find("peer") != std::string::npos ||
      reason.find("aborted") != std::string::npos) {
    return 1;
  }
  switch (exit.status.signal) {
    case 0:
      return reason.empty() ? 3 : 4;
    case SIGABRT:
      return 2;
    case SIGTERM:
    case SIGPIPE:
    case SIGHUP:
      return 1;
    default:
      return 5;
  }
}

}  // namespace

std::string Failure::to_string() const {
  if (rank < 0 && lost) {
    return fmt::format("node {} was lost: {}", host, reason);
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

void Verdict::say_reason(int rank, const std::string& reason) {
  reasons_[rank] = reason;
}

void Verdict::take(const RankExited& exit, const std::string& host) {
  if (exit.status.ok() || exit.was_stopped) {
    return;
  }
  const std::string& reason = reasons_[exit.rank];
  const int weight = weight_of(exit, reason);
  const bool first = !failure_;
  const bool likelier =
      !first && exit.batch == batch_ && weight > weight_ && !failure_->lost;
  if (!first && !likelier) {
    return;
  }
  failure_ = Failure{
      exit.rank,
      false,
      host,
      exit.pid,
      exit.status,
      exit.out_of_memory,
      reason,
      exit.last_lines};
  batch_ = exit.batch;
  weight_ = weight;
}

void Verdict::take(const RankRefused& refused, const std::string& host) {
  if (!failure_) {
    failure_ =
        Failure{refused.rank, false, host, 0, {}, false, refused.reason, {}};
  }
}

void Verdict::take(const NodeLost& lost, const std::string& host) {
  if (!failure_) {
    failure_ = Failure{-1, true, host, 0, {}, false, lost.reason, {}};
  }
}

}  // namespace lockstep::launch
