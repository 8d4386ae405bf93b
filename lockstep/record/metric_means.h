#pragma once

// The metrics of a run whose program wrote no table of them: of every step and
// name the mean over ranks of what each told last. A restarted program takes
// steps again; what its new generation tells of one takes the place of what the
// old one told. Pure; one thread.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/record/csv.h"
#include "lockstep/wire/event.h"

namespace lockstep::record {

class MetricMeans {
 public:
  // Events in their order; those of other kinds are passed over.
  void take(const wire::Event& event);
  // In order of steps.
  std::vector<MetricsTable::Row> rows() const;

 private:
  struct Cell {
    int generation = 0;
    std::vector<std::pair<int, double>> values;  // by rank
  };
  struct Line {
    int64_t epoch = 0;
    std::map<std::string, Cell> cells;
  };
  std::map<int64_t, Line> lines_;  // by step
  int generation_ = 0;
};

}  // namespace lockstep::record
