#include "lockstep/record/run_story.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/record/csv.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook_text.h"
#include "lockstep/record/metric_means.h"

namespace lockstep::record {

namespace {

// "stopped" is the launcher's word for a rank that it ended; the trainer adds
// what it did first ("stopped after a checkpoint").
bool was_stopped(const RunSummary::RankRow& row) {
  return row.exit_reason == "stopped" ||
         row.exit_reason.starts_with("stopped after ");
}

// A stranger's numbers may be any: a sum that is too large stays the largest.
int64_t plus(int64_t left, int64_t right) {
  int64_t sum = 0;
  if (__builtin_add_overflow(left, right, &sum)) {
    return right > 0 ? INT64_MAX : INT64_MIN;
  }
  return sum;
}

class Gatherer {
 public:
  RunStory story;

  void take(const wire::Event& event) {
    if (!std::isfinite(event.time)) {
      return;
    }
    any_ = true;
    stretch_to(event.time);
    if (const auto* init = std::get_if<wire::Init>(&event.body);
        init != nullptr && is_time(event.time)) {
      stretch_to(event.time - std::max(init->seconds, 0.0));
    }
    means_.take(event);
    std::visit([&](const auto& body) { use(event, body); }, event.body);
  }

  bool any_rank() const { return !rows_.empty(); }

  // Numbers that need all events.
  void finish() {
    RunSummary& summary = story.summary;
    std::set<std::string> nodes;
    for (const auto& [rank, state] : rows_) {
      if (!state.row.node.empty()) {
        nodes.insert(state.row.node);
      }
    }
    summary.nodes.assign(nodes.begin(), nodes.end());
    double seconds = 0;
    int64_t iterations = 0;
    for (auto& [rank, state] : rows_) {
      auto& row = state.row;
      const auto& uses = story.ranks[rank].uses;
      for (const auto& use : uses) {
        row.mean_cpu += use.resource.cpu / static_cast<double>(uses.size());
        row.mean_gpu_use +=
            use.resource.gpu_use / static_cast<double>(uses.size());
      }
      const Steady steady = steady_state(story.ranks[rank].steps);
      seconds += steady.seconds;
      iterations += steady.iterations;
      if (steady.seconds > 0) {
        summary.samples_per_second +=
            static_cast<double>(steady.samples) / steady.seconds;
      }
      summary.samples = plus(summary.samples, row.samples);
      summary.starts = std::max(summary.starts, state.starts);
      summary.ranks.push_back(row);
    }
    if (iterations > 0) {
      summary.iteration_seconds = seconds / static_cast<double>(iterations);
    }
    summary.world_size =
        std::max(summary.world_size, static_cast<int>(rows_.size()));
    std::stable_sort(
        summary.remarks.begin(),
        summary.remarks.end(),
        [](const auto& a, const auto& b) { return a.time < b.time; });
    count_told_epochs();
    judge();
  }

  // For runs without metrics.csv.
  std::vector<MetricsTable::Row> metric_rows() const { return means_.rows(); }

 private:
  // A program that is read by patterns counts its epochs as it likes; ours, and
  // those that write events, count from 0.
  void count_told_epochs() {
    const bool writes = std::ranges::any_of(
        rows_, [](const auto& row) { return row.second.starts > 0; });
    const auto& [least, most] = ended_epochs_ ? *ended_epochs_ : epochs_;
    if (!writes && least == 1) {
      story.summary.epochs = most;
    }
  }

  // What a broken clock tells does not make the run longer.
  void stretch_to(double time) {
    if (!is_time(time)) {
      return;
    }
    RunSummary& summary = story.summary;
    summary.start = timed_ ? std::min(summary.start, time) : time;
    summary.end = timed_ ? std::max(summary.end, time) : time;
    timed_ = true;
  }

  struct State {
    RunSummary::RankRow row;
    int starts = 0;
    double exit_time = 0;
    bool fresh = true;  // no iteration since the start
  };
  struct Steady {
    double seconds = 0;
    int64_t samples = 0;
    int64_t iterations = 0;
  };

  State& state(const wire::Event& event) {
    State& found = rows_[event.rank];
    found.row.rank = event.rank;
    // A rank and its supervisor may know its host by different names: the
    // rank's own counts, else one host would be two.
    const bool told = std::holds_alternative<wire::Exit>(event.body) &&
                      !found.row.node.empty();
    if (!event.node.empty() && !told) {
      found.row.node = event.node;
    }
    return found;
  }

  static Steady steady_state(const std::vector<RunStory::Step>& steps) {
    Steady all;
    Steady steady;
    for (const auto& step : steps) {
      for (Steady* sum : {&all, &steady}) {
        if (sum == &steady && step.first) {
          continue;
        }
        sum->seconds += step.total;
        sum->samples = plus(sum->samples, step.samples);
        ++sum->iterations;
      }
    }
    return steady.iterations > 0 ? steady : all;
  }

  void use(const wire::Event& event, const wire::Init& init) {
    RunSummary& summary = story.summary;
    if (event.rank < 0) {
      // The launcher's, for programs that write no events themselves.
      if (rows_.empty()) {
        summary.program = init.program;
        summary.world_size = init.world_size;
      }
      return;
    }
    if (rows_.empty() || event.rank <= rows_.begin()->first) {
      summary.program = init.program;
      summary.facts = init.facts;
    }
    // The last start counts: a group may have been made smaller.
    summary.world_size = init.world_size;
    summary.init_seconds = std::max(summary.init_seconds, init.seconds);
    State& rank = state(event);
    rank.fresh = true;
    ++rank.starts;
    rank.row.exit_code.reset();
    rank.row.exit_reason.clear();
  }

  void use(const wire::Event&, const wire::Phase&) {}

  void use(const wire::Event& event, const wire::Iteration& iteration) {
    State& rank = state(event);
    auto& row = rank.row;
    ++row.iterations;
    row.samples = plus(row.samples, iteration.samples);
    row.data += iteration.data;
    row.compute += iteration.compute;
    row.communication += iteration.communication;
    row.wait += iteration.wait;
    row.total += iteration.total;
    RunSummary& summary = story.summary;
    summary.steps = std::max(summary.steps, iteration.step);
    summary.epochs = std::max(summary.epochs, plus(iteration.epoch, 1));
    epochs_.first = std::min(epochs_.first, iteration.epoch);
    epochs_.second = std::max(epochs_.second, iteration.epoch);
    story.ranks[event.rank].steps.push_back(
        {iteration.step,
         iteration.samples,
         iteration.total,
         std::exchange(rank.fresh, false)});
  }

  void use(const wire::Event&, const wire::Metric&) {}  // means_ has them

  void use(const wire::Event& event, const wire::Epoch& epoch) {
    if (event.rank >= 0) {
      state(event);
    }
    RunSummary& summary = story.summary;
    summary.epochs = std::max(summary.epochs, plus(epoch.epoch, 1));
    if (!ended_epochs_) {
      ended_epochs_ = {epoch.epoch, epoch.epoch};
    }
    ended_epochs_->first = std::min(ended_epochs_->first, epoch.epoch);
    ended_epochs_->second = std::max(ended_epochs_->second, epoch.epoch);
  }

  void use(const wire::Event&, const wire::Checkpoint& checkpoint) {
    story.summary.checkpoints.push_back(checkpoint);
  }

  void use(const wire::Event& event, const wire::Resource& resource) {
    auto& row = state(event).row;
    row.peak_resident_bytes =
        std::max(row.peak_resident_bytes, resource.resident_bytes);
    row.gpu_memory_bytes =
        std::max(row.gpu_memory_bytes, resource.gpu_memory_bytes);
    if (is_time(event.time)) {  // else it has no place in a course over time
      story.ranks[event.rank].uses.push_back({event.time, resource});
    }
  }

  void use(const wire::Event& event, const wire::Exit& exit) {
    const int code = exit.signal != 0 ? 128 + exit.signal : exit.code;
    if (event.rank < 0) {
      if (code != 0) {
        story.summary.failure = fmt::format(
            "exit code {}{}{}",
            code,
            exit.reason.empty() ? "" : ": ",
            exit.reason);
      }
      return;
    }
    auto& row = state(event).row;
    // A rank and its supervisor may both say it; the reason is the rank's.
    row.exit_code = code;
    state(event).exit_time = event.time;
    if (!exit.reason.empty()) {
      row.exit_reason = exit.reason;
    }
  }

  void use(const wire::Event& event, const wire::Node& node) {
    story.summary.remarks.push_back(
        {event.time,
         fmt::format(
             "node {} {}{}{}",
             event.node,
             node.state,
             node.detail.empty() ? "" : ": ",
             node.detail)});
  }

  void use(const wire::Event&, const wire::Cost& cost) {
    story.summary.cost = cost;
  }

  void use(const wire::Event& event, const wire::Decision& decision) {
    story.summary.remarks.push_back(
        {event.time,
         fmt::format(
             "{}{}{}",
             decision.action,
             decision.reason.empty() ? "" : ": ",
             decision.reason)});
  }

  void judge() {
    RunSummary& summary = story.summary;
    using Outcome = RunSummary::Outcome;
    if (!any_) {
      summary.outcome = Outcome::kEmpty;
      return;
    }
    summary.outcome =
        summary.ranks.empty() ? Outcome::kUnfinished : Outcome::kFinished;
    const State* culprit = nullptr;
    for (const auto& [rank, state] : rows_) {
      if (!state.row.exit_code && summary.outcome == Outcome::kFinished) {
        summary.outcome = Outcome::kUnfinished;
      }
      if (state.row.exit_code.value_or(0) != 0 &&
          (culprit == nullptr || blame(state) < blame(*culprit))) {
        culprit = &state;
      }
    }
    if (culprit != nullptr) {
      summary.outcome =
          was_stopped(culprit->row) ? Outcome::kStopped : Outcome::kFailed;
      summary.failure = fmt::format(
          "rank {}: exit code {}{}{}",
          culprit->row.rank,
          *culprit->row.exit_code,
          culprit->row.exit_reason.empty() ? "" : ": ",
          culprit->row.exit_reason);
    } else if (!summary.failure.empty()) {
      summary.outcome = Outcome::kFailed;
    }
  }

  // Smaller: more to blame. Ranks that lost another one say less than that
  // one, and ranks that were ended less still; of the others the first to end
  // is the cause.
  static std::pair<int, double> blame(const State& state) {
    constexpr int kTerminated = 128 + 15;
    constexpr int kLost = 3;
    const auto& row = state.row;
    const bool ended = was_stopped(row) || (row.exit_reason.empty() &&
                                            *row.exit_code == kTerminated);
    return {ended ? 2 : *row.exit_code == kLost ? 1 : 0, state.exit_time};
  }

  bool any_ = false;
  bool timed_ = false;  // some event told a time
  std::map<int, State> rows_;
  MetricMeans means_;
  // The least and the greatest number that was told.
  using Span = std::pair<int64_t, int64_t>;
  Span epochs_ = {INT64_MAX, 0};      // of iterations
  std::optional<Span> ended_epochs_;  // of epochs that ended
};

// Files of ranks, by number.
std::vector<os::Path> rank_files(const RunDirectory& run) {
  std::vector<std::pair<int, os::Path>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(
           run.rank_events(0).parent_path(), error)) {
    if (entry.path().extension() == ".jsonl") {
      found.emplace_back(std::atoi(entry.path().stem().c_str()), entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<os::Path> paths;
  paths.reserve(found.size());
  for (auto& [rank, path] : found) {
    paths.push_back(std::move(path));
  }
  return paths;
}

Result<void> read_events(Gatherer& gatherer, const os::Path& path) {
  EventReader reader(path);
  LOCKSTEP_TRY(reader.poll([&](const wire::Event& event, const std::string&) {
    gatherer.take(event);
  }));
  gatherer.story.summary.skipped_lines += reader.skipped();
  return {};
}

// Rows of metrics.csv as far as they can be read: a run that was killed may
// leave half a line, and the page must still come.
std::vector<MetricsTable::Row> read_metrics(
    const RunDirectory& run,
    std::vector<std::string>& notes) {
  std::vector<MetricsTable::Row> rows;
  if (!os::real_files().exists(run.metrics())) {
    return rows;
  }
  auto text = os::real_files().read(run.metrics());
  if (!text) {
    notes.push_back(text.error().to_string());
    return rows;
  }
  text->resize(text->rfind('\n') + 1);  // npos + 1 is 0
  if (text->empty()) {
    return rows;
  }
  // Read from a copy in memory, so that the file itself is left alone.
  os::FakeFileSystem memory;
  auto table =
      memory.write_atomic("metrics.csv", *text)
          ? MetricsTable::open(memory, "metrics.csv")
          : Result<MetricsTable>(Error(ErrorCode::kInternal, "no memory"));
  if (!table) {
    notes.push_back(table.error().to_string());
    return rows;
  }
  return table->rows();
}

void take_metrics(RunStory& story, const std::vector<MetricsTable::Row>& rows) {
  std::map<std::string, size_t> places;
  for (const auto& row : rows) {
    for (const auto& [name, value] : row.values) {
      const auto [place, added] = places.emplace(name, story.metrics.size());
      if (added) {
        story.metrics.push_back({name, {}, {}});
      }
      Series& series = story.metrics[place->second];
      series.x.push_back(static_cast<double>(row.step));
      series.y.push_back(value);
      RunSummary& summary = story.summary;
      summary.last_metrics[name] = value;
      auto& range =
          summary.metrics
              .emplace(
                  name,
                  RunSummary::MetricRange{
                      value, value, value, row.step, row.step, row.step})
              .first->second;
      range.last = value;
      range.last_step = row.step;
      if (value < range.lowest || !std::isfinite(range.lowest)) {
        range.lowest = value;
        range.lowest_step = row.step;
      }
      if (value > range.highest || !std::isfinite(range.highest)) {
        range.highest = value;
        range.highest_step = row.step;
      }
      summary.steps = std::max(summary.steps, row.step);
    }
  }
  std::sort(
      story.metrics.begin(),
      story.metrics.end(),
      [](const Series& a, const Series& b) { return a.name < b.name; });
}

}  // namespace

Result<RunStory> read_story(const RunDirectory& run) {
  Gatherer gatherer;
  gatherer.story.summary.id = run.id();
  LOCKSTEP_TRY(read_events(gatherer, run.events()));
  if (!gatherer.any_rank()) {
    for (const auto& path : rank_files(run)) {
      LOCKSTEP_TRY(read_events(gatherer, path));
    }
  }
  gatherer.finish();
  auto rows = read_metrics(run, gatherer.story.notes);
  if (rows.empty()) {
    rows = gatherer.metric_rows();
  }
  take_metrics(gatherer.story, rows);
  return std::move(gatherer.story);
}

Result<RunSummary> summarise(const RunDirectory& run) {
  LOCKSTEP_ASSIGN(RunStory story, read_story(run));
  return std::move(story.summary);
}

std::string_view to_string(RunSummary::Outcome outcome) {
  switch (outcome) {
    case RunSummary::Outcome::kEmpty:
      return "empty";
    case RunSummary::Outcome::kUnfinished:
      return "unfinished";
    case RunSummary::Outcome::kFailed:
      return "failed";
    case RunSummary::Outcome::kStopped:
      return "stopped";
    case RunSummary::Outcome::kFinished:
      break;
  }
  return "finished";
}

}  // namespace lockstep::record
