#include "lockstep/commands/bench_replay.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/record/csv.h"

namespace lockstep::commands {
namespace {

using economics::kNumStages;
using economics::RecordedRun;

constexpr std::array<std::string_view, kNumStages> kStageColumns = {
    "pi2_ms",
    "pi2_5_mean_ms",
    "pi2_10_mean_ms",
    "first32_mean_ms",
    "first64_mean_ms"};

// A row with its place in the file.
struct Row {
  const record::CsvTable& table;
  const std::vector<std::string>& cells;
  std::string place;  // "runs.csv: row 3 (lu.C, c5.large)"

  Error bad(std::string_view column, const std::string& what) const {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{}: {}: {}", place, column, what));
  }
  const std::string& text(std::string_view column) const {
    return cells[static_cast<size_t>(table.column(column))];
  }
  // None for an empty cell.
  Result<std::optional<double>> number(std::string_view column) const {
    const std::string& cell = text(column);
    if (cell.empty() || cell == "nan" || cell == "NaN" || cell == "NA") {
      return std::optional<double>();
    }
    double value = 0;
    const char* end = cell.data() + cell.size();
    const auto read = std::from_chars(cell.data(), end, value);
    if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value) ||
        value < 0) {
      return bad(column, fmt::format("'{}' is no number from 0", cell));
    }
    return std::optional<double>(value);
  }
};

// None, and a line in `left_out`, for a run that lacks what is compared.
Result<std::optional<RecordedRun>> parse_run(
    const Row& row,
    std::vector<std::string>& left_out) {
  RecordedRun run;
  run.experiment = row.text("suite") + "/" + row.text("experiment");
  double nodes = 0;
  double price = 0;
  struct Needed {
    std::string_view column;
    double* value;
    const char* why;
  };
  const std::array<Needed, 4> needed = {{
      {"nodes", &nodes, "a run has nodes from 1"},
      {"usd_per_hour_each", &price, "no cost can be compared without a price"},
      {"pi_mean_ms", &run.mean, "the truth that the pick is compared with"},
      {"pi_count", &run.iterations, "how many iterations it had"},
  }};
  for (const Needed& one : needed) {
    LOCKSTEP_ASSIGN(const auto value, row.number(one.column));
    *one.value = value.value_or(0);
    if (*one.value <= 0) {
      const std::string& cell = row.text(one.column);
      left_out.push_back(
          fmt::format(
              "{}: {} is {}: {}",
              row.place,
              one.column,
              cell.empty() ? "empty" : cell,
              one.why));
      return std::optional<RecordedRun>();
    }
  }
  run.seen.dollars_per_hour = nodes * price;
  for (size_t i = 0; i < kNumStages; ++i) {
    LOCKSTEP_ASSIGN(run.seen.stages[i], row.number(kStageColumns[i]));
  }
  return std::optional<RecordedRun>(std::move(run));
}

}  // namespace

Result<RecordedRuns> parse_recorded_runs(
    const std::string& text,
    const std::string& source) {
  const auto parsed = record::parse_csv(text, source);
  if (!parsed) {
    return Error(ErrorCode::kInvalidInput, parsed.error().message());
  }
  const record::CsvTable& table = *parsed;
  std::vector<std::string_view> wanted = {
      "suite",
      "experiment",
      "nodes",
      "usd_per_hour_each",
      "pi_mean_ms",
      "pi_count"};
  wanted.insert(wanted.end(), kStageColumns.begin(), kStageColumns.end());
  std::string missing;
  for (const std::string_view column : wanted) {
    if (table.column(column) < 0) {
      missing += (missing.empty() ? "" : ", ") + std::string(column);
    }
  }
  if (!missing.empty()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("{}: no column {}", source, missing))
        .with_fix("docs/economics.md lists the columns of recorded runs");
  }
  RecordedRuns result;
  const int instance = table.column("instance");
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const auto& cells = table.rows[i];
    Row row{table, cells, ""};
    row.place = fmt::format(
        "{}: row {} ({}{})",
        source,
        i + 1,
        row.text("experiment"),
        instance < 0 ? "" : ", " + cells[static_cast<size_t>(instance)]);
    LOCKSTEP_ASSIGN(auto run, parse_run(row, result.left_out));
    if (run) {
      result.runs.push_back(std::move(*run));
    }
  }
  if (result.runs.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        result.left_out.empty()
            ? source + ": no run in it"
            : "no run that can be compared: " + result.left_out.front());
  }
  return result;
}

std::string replay_text(const economics::ReplayScore& score) {
  return fmt::format(
      "experiments   {}\n"
      "cheapest      {:.1f}% picked\n"
      "fastest       {:.1f}% picked\n"
      "regret        {:.2f}% in the mean, {:.1f}% at most\n"
      "probe cost    {:.1f}% of measuring the first 64 iterations everywhere\n",
      score.experiments,
      100 * score.cheapest,
      100 * score.fastest,
      100 * score.mean_regret,
      100 * score.max_regret,
      100 * score.probe_cost);
}

std::string replay_json(const economics::ReplayScore& score) {
  const nlohmann::ordered_json result = {
      {"experiments", score.experiments},
      {"cheapest", score.cheapest},
      {"fastest", score.fastest},
      {"mean_regret", score.mean_regret},
      {"max_regret", score.max_regret},
      {"probe_cost", score.probe_cost}};
  return result.dump(2);
}

}  // namespace lockstep::commands
