#include "lockstep/fleet/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::fleet {
namespace {

constexpr double kHoursOfMonth = 730;
constexpr double kGibibyte = 1024.0 * 1024 * 1024;

double hours(Duration value) {
  return to_seconds(value) / 3600;
}

}  // namespace

Money disk_hourly(Bytes disk) {
  return kDiskMonthly *
         (std::ceil(static_cast<double>(disk.count) / kGibibyte) /
          kHoursOfMonth);
}

Money billed(Money hourly, Duration age) {
  return hourly * hours(std::max(age, kLeastBilled));
}

Money traffic_cost(Bytes bytes) {
  return kTrafficGigabyte * (static_cast<double>(bytes.count) / 1e9);
}

Money cost_so_far(const std::vector<Life>& lives, double now) {
  Money sum;
  for (const Life& life : lives) {
    const double end = life.ended > 0 ? life.ended : now;
    sum = sum +
          billed(life.hourly, from_seconds(std::max(0.0, end - life.launched)));
  }
  return sum;
}

Money Budget::reserve(Money hourly) const {
  return hourly * hours(options_.stopping) + traffic_cost(options_.stored);
}

Result<void> Budget::check(Money hourly, int num_nodes) const {
  if (options_.cap && *options_.cap < billed(hourly, kLeastBilled)) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "the budget of {} is below the cost of one minute of {} "
                   "node{} ({})",
                   format_money(*options_.cap),
                   num_nodes,
                   num_nodes == 1 ? "" : "s",
                   format_money(billed(hourly, kLeastBilled))))
        .with_fix("raise the budget, or take fewer or cheaper machines");
  }
  if (options_.cap && *options_.cap <= reserve(hourly)) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "the budget of {} is used up by stopping and storing ({})",
                   format_money(*options_.cap),
                   format_money(reserve(hourly))))
        .with_fix("raise the budget, or take fewer or cheaper machines");
  }
  if (options_.max_duration && *options_.max_duration < kLeastBilled) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "max_duration {} is below one minute, the least that a "
                   "machine is billed",
                   format_duration(*options_.max_duration)))
        .with_fix("accepted: 1m and more; a machine boots in about a minute");
  }
  if (options_.max_duration && *options_.max_duration <= options_.stopping) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "max_duration {} is not longer than stopping takes ({})",
            format_duration(*options_.max_duration),
            format_duration(options_.stopping)));
  }
  return {};
}

std::optional<Duration>
Budget::time_left(Money spent, Money hourly, Duration since_start) const {
  std::optional<Duration> left;
  if (options_.cap && hourly > Money()) {
    const Money free = *options_.cap - spent - reserve(hourly);
    // Not beyond what a Duration holds.
    const double seconds =
        std::min(free.dollars() / hourly.dollars() * 3600, 1e9);
    left = from_seconds(std::max(0.0, seconds));
  }
  if (options_.max_duration) {
    const Duration free =
        *options_.max_duration - options_.stopping - since_start;
    left = std::min(left.value_or(Duration::max()), free);
  }
  if (left) {
    left = std::max(*left, Duration(0));
  }
  return left;
}

std::optional<Duration> Budget::longest_life(Money hourly) const {
  std::optional<Duration> longest = options_.max_duration;
  if (options_.cap && hourly > Money()) {
    const Money free = *options_.cap - traffic_cost(options_.stored);
    const double seconds =
        std::min(free.dollars() / hourly.dollars() * 3600, 1e9);
    longest = std::min(
        longest.value_or(Duration::max()),
        from_seconds(std::max(0.0, seconds)));
  }
  return longest;
}

}  // namespace lockstep::fleet
