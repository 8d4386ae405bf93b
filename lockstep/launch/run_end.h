#pragma once

// How a run may end: the words and exit codes of docs/errors.md, and the caps
// of time and money. Pure.

#include <optional>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {

enum class RunEnd { kDone, kFailed, kLost, kCapped, kTimeout, kInterrupted };

// 0, 1, 3, 4, 124, 130.
int exit_code(RunEnd end);
// "done", "failed", "lost", "capped", "timeout", "stopped".
std::string to_string(RunEnd end);

// The hard end of a run by max_duration and budget, from its start: when to
// ask the ranks to stop, and when nothing may run any more.
struct Cap {
  Duration stop{};
  Duration end{};
  std::string reason;  // "max_duration 4h", "budget $20"
};
// For rented machines: how long it takes to store and give back after the
// ranks have ended, inside the cap; when the machines end by themselves; and
// what a GB costs that leaves them for the user's machine.
struct CapTerms {
  Duration reserve{};
  std::optional<Duration> life;
  Money gigabyte{};
};
Money traffic_cost(const CapTerms& terms, Bytes bytes);
// How much may still leave the machines when `spent` is spent; none: all.
std::optional<Bytes>
affordable(const Job& job, Money spent, const CapTerms& terms);
// `leaving`: what will leave the machines when the run ends now; a budget must
// pay for that, too.
std::optional<Cap> cap_of(
    const Job& job,
    std::optional<Money> price_per_hour,
    const CapTerms& terms = {},
    Bytes leaving = {});

}  // namespace lockstep::launch
