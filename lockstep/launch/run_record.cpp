#include "lockstep/launch/run_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/base/log.h"
#include "lockstep/launch/masks.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook.h"
#include "lockstep/record/metric_means.h"

namespace lockstep::launch {
namespace {

void warn(const Result<void>& result) {
  if (!result) {
    log_warning(result.error().to_string());
  }
}

// A program that wrote metrics as events, or was read by patterns, has no
// table of them yet; the trainer makes its own.
Result<void> write_metrics(const record::RunDirectory& run) {
  if (os::real_files().exists(run.metrics())) {
    return {};
  }
  record::MetricMeans means;
  record::EventReader reader(run.events());
  LOCKSTEP_TRY(reader.poll(
      [&](const wire::Event& event, const auto&) { means.take(event); }));
  const auto rows = means.rows();
  if (rows.empty()) {
    return {};
  }
  LOCKSTEP_ASSIGN(
      auto table, record::MetricsTable::open(os::real_files(), run.metrics()));
  for (const auto& row : rows) {
    LOCKSTEP_TRY(table.add(row.step, row.epoch, row.values));
  }
  return {};
}

}  // namespace

RunStateFile first_state(
    const record::RunDirectory& run,
    const RunRequest& request) {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  RunStateFile state;
  state.id = run.id();
  state.name = request.job.name;
  state.state = "running";
  state.host = host;
  state.pid = ::getpid();
  state.pid_start = start_ticks(state.pid).value_or(0);
  state.started = os::real_clock().unix_seconds();
  state.world_size = request.plan.world_size();
  state.program = request.program;
  if (request.price_per_hour) {
    state.dollars_per_hour = request.price_per_hour->dollars();
  }
  return state;
}

Result<void> record_job(const record::RunDirectory& run, const Job& job) {
  LOCKSTEP_TRY(Masks::of(job).write(run));
  LOCKSTEP_ASSIGN(auto file, os::real_files().open_append(run.job()));
  return file->append(job_yaml(job));
}

Result<void> begin_record(
    const record::RunDirectory& run,
    const Job& job,
    const RunStateFile& state) {
  LOCKSTEP_TRY(record_job(run, job));
  return write_run_state(run, state);
}

void end_record(
    const record::RunDirectory& run,
    const Job& job,
    const Result<RunOutcome>& outcome,
    RunStateFile& state) {
  state.ended = os::real_clock().unix_seconds();
  state.state = outcome ? to_string(outcome->end) : "failed";
  state.exit_code = outcome ? exit_code(outcome->end) : 1;
  state.detail =
      redact(job, outcome ? outcome->detail : outcome.error().to_string());
  if (!os::real_files().exists(run.path())) {
    log_error(run.path().string() + " was deleted: nothing is written there");
    return;
  }
  if (outcome) {
    std::optional<Money> price;
    if (state.dollars_per_hour > 0) {
      price = Money::from_dollars(state.dollars_per_hour);
    }
    warn(write_metrics(run));
    warn(
        record::write_logbook(
            run,
            {.name = job.name,
             .command = state.command,
             .price_per_hour = price,
             .price_source = state.price_source,
             .started = state.started,
             .ended = state.ended,
             .ending = outcome->end == RunEnd::kDone ? "" : state.detail,
             .outputs = state.outputs}));
  }
  if (const auto written = write_run_state(run, state); !written) {
    log_error(
        fmt::format(
            "the end of the run could not be written down: {}; later readers "
            "will take it for lost",
            written.error().to_string()));
  }
}

}  // namespace lockstep::launch
