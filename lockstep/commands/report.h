#pragma once

// The report of a run: what `lockstep report` prints and `lockstep run` ends
// with.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/commands/command.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/record/logbook.h"

namespace lockstep::commands {

struct Report {
  record::RunSummary summary;
  std::optional<launch::RunStateFile> state;  // none: the trainer ran alone
  os::Path directory;
  os::Path picture;  // the last grid of samples; empty: none
  os::Path logbook;  // empty: none
  double seconds = 0;
  std::optional<Money> cost;
  std::string state_name() const;
};

// The rank that computes longest, and how long the others do (their median);
// seconds an iteration. None for one rank, or without iterations.
struct SlowestRank {
  int rank = 0;
  std::string node;
  double compute = 0;
  double others = 0;
};
std::optional<SlowestRank> slowest_rank(const record::RunSummary& summary);

// `known`: the state as whoever watched the run knows it, which may not be on
// the disk: that may be full.
Result<Report> make_report(
    const record::RunDirectory& run,
    const launch::RunStateFile* known = nullptr);
std::string report_text(const Report& report);
nlohmann::json report_json(const Report& report);
// To stdout, in the format that was asked for.
void print_report(const Report& report, OutputFormat format);

}  // namespace lockstep::commands
