#pragma once

// Everything the files of a run tell, gathered in one pass: the summary and
// the courses over steps and time that the plots show. Private to record/.

#include <map>
#include <string>
#include <vector>

#include "lockstep/record/logbook.h"
#include "lockstep/record/plot.h"

namespace lockstep::record {

struct RunStory {
  RunSummary summary;
  struct Step {
    int64_t step = 0;
    int64_t samples = 0;
    double total = 0;
    bool first = false;  // after a start: slower than the others
  };
  struct Use {
    double time = 0;
    wire::Resource resource;
  };
  struct Rank {
    std::vector<Step> steps;
    std::vector<Use> uses;
  };
  std::map<int, Rank> ranks;
  std::vector<Series> metrics;     // by step, one a metric
  std::vector<std::string> notes;  // what could not be read
};

Result<RunStory> read_story(const RunDirectory& run);

}  // namespace lockstep::record
