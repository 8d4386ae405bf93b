#include "lockstep/launch/run_end.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

// With what leaves the machines where that is much of it.
std::string budget_reason(Money budget, const CapTerms& terms, Bytes leaving) {
  const std::string reason = "budget " + format_money(budget);
  const Money traffic = traffic_cost(terms, leaving);
  return traffic * 10 < budget
             ? reason
             : fmt::format(
                   "{}, of which {} that leave the cloud take {}",
                   reason,
                   format_bytes(leaving),
                   format_money(traffic));
}

}  // namespace

int exit_code(RunEnd end) {
  switch (end) {
    case RunEnd::kDone:
      return 0;
    case RunEnd::kFailed:
      return 1;
    case RunEnd::kLost:
      return 3;
    case RunEnd::kCapped:
      return 4;
    case RunEnd::kTimeout:
      return 124;
    case RunEnd::kInterrupted:
      return 130;
  }
  return 1;
}

std::string to_string(RunEnd end) {
  switch (end) {
    case RunEnd::kDone:
      return "done";
    case RunEnd::kFailed:
      return "failed";
    case RunEnd::kLost:
      return "lost";
    case RunEnd::kCapped:
      return "capped";
    case RunEnd::kTimeout:
      return "timeout";
    case RunEnd::kInterrupted:
      return "stopped";
  }
  return "failed";
}

Money traffic_cost(const CapTerms& terms, Bytes bytes) {
  return terms.gigabyte * (static_cast<double>(bytes.count) / 1e9);
}

std::optional<Bytes>
affordable(const Job& job, Money spent, const CapTerms& terms) {
  if (!job.budget || terms.gigabyte <= Money()) {
    return {};
  }
  const double left = std::max(0.0, (*job.budget - spent).dollars());
  // Not beyond what a number of bytes holds.
  const double bytes = std::min(left / terms.gigabyte.dollars() * 1e9, 1e18);
  return Bytes{static_cast<uint64_t>(bytes)};
}

std::optional<Cap> cap_of(
    const Job& job,
    std::optional<Money> price_per_hour,
    const CapTerms& terms,
    Bytes leaving) {
  std::optional<Cap> cap;
  Duration traffic{};  // as time of the machines, which the budget has less
  if (job.max_duration) {
    cap =
        Cap{{},
            *job.max_duration,
            "max_duration " + format_duration(*job.max_duration)};
  }
  if (job.budget && price_per_hour && price_per_hour->nanos() > 0) {
    const auto time_of = [&](Money money) {
      return from_seconds(money.dollars() / price_per_hour->dollars() * 3600);
    };
    const Duration end = time_of(*job.budget);
    const Duration paid = time_of(traffic_cost(terms, leaving));
    if (!cap || end - paid < cap->end) {
      traffic = paid;
      cap = Cap{{}, end, budget_reason(*job.budget, terms, leaving)};
    }
  }
  if (terms.life && (!cap || *terms.life < cap->end)) {
    cap =
        Cap{{},
            *terms.life,
            cap          ? cap->reason
            : job.budget ? budget_reason(*job.budget, terms, leaving)
                         : "the end of the machines' time"};
  }
  if (cap) {
    cap->end = std::max(Duration(0), cap->end - traffic);
    cap->end -= std::min<Duration>(terms.reserve, cap->end / 4);
    // Time to write a checkpoint, inside the cap, but not most of a short one.
    cap->stop = cap->end - std::min<Duration>(job.grace, cap->end / 10);
  }
  return cap;
}

}  // namespace lockstep::launch
