#pragma once

// Line plots as SVG that a person can read: axes with round ticks, grid,
// legend, units. Pure.

#include <string>
#include <vector>

namespace lockstep::record {

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // NaN breaks the line
};

struct PlotOptions {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_y = false;
  bool from_zero = false;  // the y axis starts at 0
  int width = 720;
  int height = 360;
};

std::string plot_svg(
    const std::vector<Series>& series,
    const PlotOptions& options);

}  // namespace lockstep::record
