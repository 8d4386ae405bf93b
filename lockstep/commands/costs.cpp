#include "lockstep/commands/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "lockstep/base/log.h"

namespace lockstep::commands {
namespace {

// When a run that nobody ended was last heard of: the newest file of its
// directory (events, logs, checkpoints). Unix seconds; 0: there is none.
double last_sign(const record::RunDirectory& run) {
  namespace fs = std::filesystem;
  double last = 0;
  std::error_code stop;
  for (fs::recursive_directory_iterator file(run.path(), stop), end;
       !stop && file != end;
       file.increment(stop)) {
    std::error_code gone;
    const auto written = file->last_write_time(gone);
    if (!gone && file->is_regular_file(gone)) {
      const auto time = std::chrono::file_clock::to_sys(written);
      last = std::max(last, to_seconds(time.time_since_epoch()));
    }
  }
  return last;
}

}  // namespace

std::optional<Money> cost_of(
    const launch::RunStateFile& state,
    const record::RunDirectory& run) {
  if (state.cost > 0) {
    return Money::from_dollars(state.cost);
  }
  if (state.dollars_per_hour <= 0) {
    return {};
  }
  const bool goes_on = state.state == "running" || state.state == "unreachable";
  const double end = state.ended > 0 ? state.ended
                     : goes_on       ? os::real_clock().unix_seconds()
                                     : last_sign(run);
  return Money::from_dollars(
      state.dollars_per_hour * std::max(0.0, end - state.started) / 3600);
}

Result<std::vector<RunCost>> costs_since(
    const Settings& settings,
    double since) {
  LOCKSTEP_ASSIGN(const auto runs, record::list_runs(settings.runs_dir));
  std::vector<RunCost> costs;
  for (const record::RunDirectory& run : runs) {
    const auto state = launch::read_run_state(run);
    if (!state) {
      log_warning(state.error().to_string());
      continue;
    }
    if (*state && (*state)->started >= since) {
      costs.push_back({**state, cost_of(**state, run)});
    }
  }
  return costs;
}

Result<std::optional<Money>> check_cap(const Settings& settings) {
  if (!settings.cap) {
    return std::optional<Money>();
  }
  const double since =
      os::real_clock().unix_seconds() - to_seconds(settings.cap_period);
  LOCKSTEP_ASSIGN(const auto costs, costs_since(settings, since));
  Money sum;
  for (const RunCost& one : costs) {
    sum = sum + one.cost.value_or(Money());
  }
  if (sum >= *settings.cap) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{} of your cap of {} over {} are spent",
                   format_money(sum),
                   format_money(*settings.cap),
                   format_duration(settings.cap_period)))
        .with_fix(
            fmt::format(
                "'lockstep cost' tells by what; raise 'cap' in {}",
                settings_file().string()));
  }
  return std::optional<Money>(*settings.cap - sum);
}

}  // namespace lockstep::commands
