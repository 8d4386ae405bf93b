#pragma once

// What was decided while a run trained, and on which machines it was, as a
// timeline: plots/timeline.svg and a section of the logbook. One thread.

#include <string>
#include <vector>

#include "lockstep/economics/optimise.h"
#include "lockstep/fleet/node.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {

class DecisionLog {
 public:
  // From `seconds` after the start on these nodes train.
  void nodes(
      double seconds,
      const std::vector<std::string>& types,
      const std::vector<fleet::Node>& nodes);
  void decision(
      double seconds,
      const std::string& action,
      const economics::Decision& decision);
  // The last word about money, as an event.
  void append_cost(const record::RunDirectory& run, Money cost) const;
  // The picture, and the section at the end of logbook.md.
  void write(const record::RunDirectory& run) const;

 private:
  struct Set {
    double seconds = 0;
    std::vector<int> counts;  // by type
    double dollars_per_hour = 0;
  };
  struct Row {
    double seconds = 0;
    std::string action, reason;
    double dollars = 0;
  };
  std::vector<std::string> types_;
  std::vector<Set> sets_;
  std::vector<Row> rows_;
};

}  // namespace lockstep::commands
