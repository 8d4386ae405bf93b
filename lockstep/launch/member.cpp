#include "lockstep/launch/member.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

constexpr double kNotedSkew = 5;  // seconds

}  // namespace

void Member::connect(
    uint64_t id,
    const Join& as,
    os::Instant now,
    double unix_seconds) {
  const double skew = as.time - unix_seconds;
  if (std::abs(skew) > kNotedSkew && !join) {
    log_warning(
        fmt::format(
            "{}: its clock is {} {} the head's; times of its events differ",
            host,
            format_duration(from_seconds(std::abs(skew))),
            skew > 0 ? "ahead of" : "behind"));
  }
  join = as;
  peer = id;
  heard = spoke = now;
  offset_.reset();
}

void Member::disconnect(const std::string& why, os::Instant now) {
  peer = 0;
  heard = now;
  cut = why;
}

void Member::note_clock(os::Instant there, os::Instant now) {
  offset_.take(there, now);
}

Result<std::vector<Report>> Member::take(Reports batch, os::Instant now) {
  if (batch.first > reports) {
    return Error(ErrorCode::kCorrupt, "left out reports");
  }
  std::vector<Report> fresh;
  const uint64_t known = reports - batch.first;
  for (size_t i = known; i < batch.reports.size(); ++i) {
    ++reports;
    if (lost || batch.generation != generation) {
      continue;
    }
    Report& report = batch.reports[i];
    if (auto* exit = std::get_if<RankExited>(&report)) {
      exit->ended = offset_.to_here(exit->ended, now);
      exit->spoke = offset_.to_here(exit->spoke, now);
    } else if (auto* gone = std::get_if<NodeLost>(&report)) {
      gone->since = offset_.to_here(gone->since, now);
      active = false;
      lost = true;
    } else if (std::holds_alternative<NodeIdle>(report)) {
      active = false;
    }
    fresh.push_back(std::move(report));
  }
  return fresh;
}

}  // namespace lockstep::launch
