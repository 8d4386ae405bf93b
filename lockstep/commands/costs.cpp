#include "lockstep/commands/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_access.h"

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

// The end of the last machine, when all that were launched have ended.
std::optional<double> last_end(const std::vector<fleet::JournalStep>& steps) {
  std::set<std::string> living;
  double last = 0;
  for (const fleet::JournalStep& step : steps) {
    if (step.step == "launch" && step.outcome && step.outcome->is_object() &&
        step.outcome->contains("id")) {
      living.insert(step.outcome->value("id", ""));
    } else if (step.step == "ended") {
      living.erase(step.subject);
      last = std::max(last, fleet::time_of_end(step));
    }
  }
  return living.empty() && last > 0 ? std::optional(last) : std::nullopt;
}

}  // namespace

std::optional<double> machines_ended(const launch::RunStateFile& state) {
  const bool goes_on = state.state == "running" || state.state == "unreachable";
  if (state.cluster.empty() || !state.is_remote() || !goes_on) {
    return {};
  }
  const auto steps = fleet::Journal::read(clusters_folder() / state.cluster);
  if (!steps) {
    return {};
  }
  std::optional<double> ended = last_end(*steps);
  for (const fleet::JournalStep& step : *steps) {
    if (step.step == "down" && step.outcome && step.time >= state.started) {
      ended = std::min(ended.value_or(step.time), step.time);
    }
  }
  return ended && *ended >= state.started ? ended : std::nullopt;
}

launch::RunStateFile with_machines(launch::RunStateFile state) {
  if (const auto ended = machines_ended(state)) {
    state.state = "lost";
    state.detail = fmt::format(
        "its machines are gone: cluster {} was given back", state.cluster);
    state.ended = *ended;
    state.exit_code = 3;
  }
  return state;
}

namespace {

// Of a run that goes on as far as its directory tells.
double end_of_bill(
    const launch::RunStateFile& state,
    const record::RunDirectory& run) {
  const bool is_rented = !state.cluster.empty() && state.is_remote();
  // Nothing is known of a cluster once all of it was given back.
  if (is_rented &&
      !os::real_files().exists(clusters_folder() / state.cluster)) {
    return last_sign(run);
  }
  return machines_ended(state).value_or(os::real_clock().unix_seconds());
}

}  // namespace

Result<int> settle_runs(
    const std::string& runs_dir,
    const std::string& cluster) {
  LOCKSTEP_ASSIGN(const auto runs, record::list_runs(runs_dir));
  int settled = 0;
  for (const record::RunDirectory& run : runs) {
    const auto state = launch::read_run_state(run);
    if (!state || !*state || (*state)->cluster != cluster) {
      continue;
    }
    const launch::RunStateFile now = with_machines(**state);
    if (now.state != (*state)->state) {
      LOCKSTEP_TRY(launch::write_run_state(run, now));
      ++settled;
    }
  }
  return settled;
}

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
                     : goes_on       ? end_of_bill(state, run)
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
      costs.push_back({with_machines(**state), cost_of(**state, run)});
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
