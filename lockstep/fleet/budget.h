#pragma once

// The arithmetic of money: what machines cost so far, and how long they may go
// on under a cap. Machines are billed by the second, at least a minute each;
// disks by size and time; traffic out of the cloud by size. What it costs to
// stop, store and give back is reserved before the cap. Pure.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::fleet {

// gp3 by list price, rounded up over the usual regions; a GiB and month.
inline constexpr Money kDiskMonthly = Money::from_nanos(100'000'000);
// Out of the cloud to the internet, a GB, first step of the list.
inline constexpr Money kTrafficGigabyte = Money::from_nanos(90'000'000);
inline constexpr Duration kLeastBilled = std::chrono::minutes(1);

Money disk_hourly(Bytes disk);
// What a machine costs that has run for so long.
Money billed(Money hourly, Duration age);
Money traffic_cost(Bytes bytes);

// One machine's life; `ended` 0: it goes on.
struct Life {
  Money hourly;  // with its disk
  double launched = 0;
  double ended = 0;
};
Money cost_so_far(const std::vector<Life>& lives, double now);

struct BudgetOptions {
  std::optional<Money> cap = {};
  std::optional<Duration> max_duration = {};
  // How long machines go on after the word to stop: checkpoint, stop, store,
  // give back.
  Duration stopping = std::chrono::minutes(2);
  Bytes stored = {};  // leaves the cloud at the end
};

class Budget {
 public:
  explicit Budget(BudgetOptions options) : options_(options) {}
  // kInvalidInput when the cap is below a minute of these machines and the
  // reserve, or the duration below a minute or shorter than stopping.
  Result<void> check(Money hourly, int num_nodes) const;
  // How long until the word to stop must be given, when `spent` is spent and
  // machines cost `hourly`; 0: now. None: never.
  std::optional<Duration>
  time_left(Money spent, Money hourly, Duration since_start) const;
  // How long a machine may live at most if all of them start now: for its own
  // timer, which holds the cap when nobody is there to give the word.
  std::optional<Duration> longest_life(Money hourly) const;
  // Of the reserve at that rate.
  Money reserve(Money hourly) const;

 private:
  BudgetOptions options_;
};

}  // namespace lockstep::fleet
