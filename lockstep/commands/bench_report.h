#pragma once

// The result of a bench: figures of each candidate, a verdict in one sentence,
// and the texts and files that show them. Every figure is computed from the
// events files that the report names; explain_text shows how. Pure but for
// write_bench_files.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/commands/bench_runner.h"

namespace lockstep::commands {

struct BenchRow {
  Probe probe;
  // Of the same work, against the cheapest, over the steps that both have seen;
  // 0: unknown.
  double times_as_dear = 0;
  double samples_per_second = 0;      // 0: the program tells no samples
  double samples_per_dollar = 0;      // 0: no samples, or no price
  double iterations_per_dollar = 0;   // 0: no price
  std::optional<double> total_steps;  // of the whole run on it
  std::optional<economics::Prediction> whole;
};

struct BenchReport {
  std::string job;
  std::vector<BenchRow> rows;  // the cheapest first; failed ones last
  std::optional<double> total_steps;
  bool priced = true;
  std::optional<size_t> cheapest;  // in rows
  std::optional<size_t> fastest;
  bool sure = false;   // the cheapest is apart from the next by its interval
  double dollars = 0;  // of all probes
  std::string verdict;
  os::Path folder;
};

// `total_steps` of the user wins over what the programs told.
BenchReport make_bench_report(
    std::string job,
    std::vector<Probe> probes,
    std::optional<double> total_steps,
    const os::Path& folder);

std::string bench_text(const BenchReport& report);
nlohmann::json bench_json(const BenchReport& report);
// Samples per dollar (or a second, without prices), a bar a candidate.
std::string bench_svg(const BenchReport& report);
// The arithmetic of every figure, from the files that it names.
std::string explain_text(const BenchReport& report);

// bench.json, bench.svg and explain.txt, each replaced whole.
Result<void> write_bench_files(const BenchReport& report);

}  // namespace lockstep::commands
