#pragma once

// Plots as SVG that a person can read: axes with round ticks, grid, units, and
// a legend beside the data, never over it. Colours are told apart by
// colour-blind people; past eight series lines are also dashed. Pure; any text
// and any numbers give a well-formed picture.

#include <string>
#include <vector>

namespace lockstep::record {

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // NaN breaks the line
  // Ends of a bar at each point; empty: no bars.
  std::vector<double> low{};
  std::vector<double> high{};
  bool reference = false;  // dashed and grey, without points: what others are
                           // compared with
};

struct PlotOptions {
  std::string title{};
  std::string x_label{};
  std::string y_label{};
  bool log_y = false;      // values that are not positive break the line
  bool from_zero = false;  // the y axis starts at 0
  bool smooth = false;     // a moving mean over the pale points
  int width = 720;
  int height = 360;
};

// Lines. Where many points fall on one column of pixels, their first, last,
// lowest and highest are drawn: spikes stay, the file stays small.
std::string plot_svg(
    const std::vector<Series>& series,
    const PlotOptions& options);

// Horizontal stacked bars: one bar a row, one colour a part, from zero, each
// with its share of the row written in it; with one part, its value.
struct Bars {
  std::vector<std::string> parts;
  struct Row {
    std::string label;
    std::vector<double> values;  // by part, not negative
  };
  std::vector<Row> rows;
  std::string title;
  std::string x_label;
  int width = 720;
};

std::string bars_svg(const Bars& bars);

}  // namespace lockstep::record
