#pragma once

// The pictures of a logbook, drawn from a run's story. Pure, private to
// record/.

#include <string>
#include <vector>

#include "lockstep/record/run_story.h"

namespace lockstep::record {

struct Picture {
  std::string file;   // name in plots/
  std::string title;  // for the page
  std::string svg;
};

std::vector<Picture> metric_pictures(const RunStory& story);
std::vector<Picture> speed_pictures(const RunStory& story);     // rate, split
std::vector<Picture> resource_pictures(const RunStory& story);  // memory, CPU

// True when less is better ("loss", "error"), false when more is ("accuracy");
// none when the name does not tell.
std::optional<bool> less_is_better(const std::string& metric);

}  // namespace lockstep::record
