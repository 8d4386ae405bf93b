#include "lockstep/record/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/record/axis.h"
#include "lockstep/record/svg.h"

namespace lockstep::record {

namespace {

using Point = std::pair<double, double>;
using Lines = std::vector<std::vector<Point>>;

constexpr double kMargin = 16;
constexpr double kTickRoom = 20;
constexpr size_t kDotsBelow = 40;      // fewer points are marked one by one
constexpr size_t kSmoothAbove = 60;    // fewer points need no mean
constexpr size_t kWindowsAcross = 25;  // of the moving mean

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  Axis x;
  Axis y;
  Point place(double px, double py) const {
    return {
        left + (right - left) * x.position(px),
        bottom - (bottom - top) * y.position(py)};
  }
};

std::string_view dashes_of(size_t index) {
  static constexpr std::array<std::string_view, 3> kDashes = {"", "7 4", "2 3"};
  return kDashes[index / 8 % kDashes.size()];
}

// Numbers near the ends of what a double holds would overflow on the way to
// pixels: they break the line as NaN does.
bool drawable(double x, double y, bool log_y) {
  constexpr double kMost = 1e300;
  return std::abs(x) < kMost && std::abs(y) < kMost &&
         (!log_y || y > 1 / kMost);
}

// Of points on one column of pixels: first, lowest, highest, last, in order.
void thin(const std::vector<Point>& column, std::vector<Point>& out) {
  if (column.size() <= 4) {
    out.insert(out.end(), column.begin(), column.end());
    return;
  }
  const auto by_height = [](const Point& a, const Point& b) {
    return a.second < b.second;
  };
  const auto [low, high] =
      std::minmax_element(column.begin(), column.end(), by_height);
  out.push_back(column.front());
  out.push_back(*std::min(low, high));
  out.push_back(*std::max(low, high));
  out.push_back(column.back());
}

Lines pixel_lines(
    const std::vector<double>& x,
    const std::vector<double>& y,
    const Frame& frame,
    bool log_y) {
  Lines lines;
  std::vector<Point> line;
  std::vector<Point> column;
  const auto end_line = [&] {
    thin(column, line);
    column.clear();
    if (!line.empty()) {
      lines.push_back(std::move(line));
      line = {};
    }
  };
  const size_t count = std::min(x.size(), y.size());
  for (size_t i = 0; i < count; ++i) {
    if (!drawable(x[i], y[i], log_y)) {
      end_line();
      continue;
    }
    const Point point = frame.place(x[i], y[i]);
    if (!column.empty() &&
        std::floor(column.back().first) != std::floor(point.first)) {
      thin(column, line);
      column.clear();
    }
    column.push_back(point);
  }
  end_line();
  return lines;
}

// Mean over a centred window of points; what is not drawn stays where it was,
// so that it does not drown the others in the sums.
std::vector<double> moving_mean(const std::vector<double>& y) {
  const auto half = static_cast<std::ptrdiff_t>(
      std::max<size_t>(y.size() / kWindowsAcross / 2, 1));
  const auto count = static_cast<std::ptrdiff_t>(y.size());
  std::vector<double> sums(y.size() + 1, 0);
  std::vector<double> numbers(y.size() + 1, 0);
  for (size_t i = 0; i < y.size(); ++i) {
    const bool counts = drawable(0, y[i], false);
    sums[i + 1] = sums[i] + (counts ? y[i] : 0);
    numbers[i + 1] = numbers[i] + (counts ? 1 : 0);
  }
  std::vector<double> mean(y.size());
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const auto from =
        static_cast<size_t>(std::max<std::ptrdiff_t>(i - half, 0));
    const auto to = static_cast<size_t>(std::min(i + half + 1, count));
    const auto at = static_cast<size_t>(i);
    mean[at] = drawable(0, y[at], false)
                   ? (sums[to] - sums[from]) / (numbers[to] - numbers[from])
                   : y[at];
  }
  return mean;
}

void draw_grid(Svg& svg, const Frame& frame, const PlotOptions& options) {
  for (size_t i = 0; i < frame.y.ticks.size(); ++i) {
    const double y = frame.place(frame.x.low, frame.y.ticks[i]).second;
    svg.line(frame.left, y, frame.right, y, "grid");
    svg.text(frame.left - 8, y + 4, frame.y.labels[i], "tick", Anchor::kEnd);
  }
  for (size_t i = 0; i < frame.x.ticks.size(); ++i) {
    const double x = frame.place(frame.x.ticks[i], frame.y.low).first;
    svg.line(x, frame.bottom, x, frame.bottom + 5, "axis");
    svg.text(
        x,
        frame.bottom + kTickRoom,
        frame.x.labels[i],
        "tick",
        Anchor::kMiddle);
  }
  svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  svg.text(
      (frame.left + frame.right) / 2,
      frame.bottom + kTickRoom + 19,
      options.x_label,
      "label",
      Anchor::kMiddle);
}

// What a line looks like; references take no colour from the others.
struct Look {
  std::string_view colour;
  std::string_view dashes;
};

std::vector<Look> looks_of(const std::vector<Series>& series) {
  std::vector<Look> looks;
  size_t index = 0;
  for (const Series& one : series) {
    if (one.reference) {
      looks.push_back({"#8c8c8c", "6 5"});
    } else {
      looks.push_back({series_colour(index), dashes_of(index)});
      ++index;
    }
  }
  return looks;
}

bool has_bar(const Series& series, size_t i, bool log_y) {
  return i < series.low.size() && i < series.high.size() &&
         drawable(series.x[i], series.low[i], log_y) &&
         drawable(series.x[i], series.high[i], log_y) &&
         series.low[i] <= series.high[i];
}

// An upright stroke with feet from low to high at each point.
void draw_bars(
    Svg& svg,
    const Frame& frame,
    const Series& series,
    std::string_view colour,
    bool log_y) {
  constexpr double kFoot = 4;
  Lines bars;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    if (!has_bar(series, i, log_y) || series.low[i] == series.high[i]) {
      continue;
    }
    const Point low = frame.place(series.x[i], series.low[i]);
    const Point high = frame.place(series.x[i], series.high[i]);
    bars.push_back({low, high});
    for (const Point& end : {low, high}) {
      bars.push_back(
          {{end.first - kFoot, end.second}, {end.first + kFoot, end.second}});
    }
  }
  svg.path(bars, {colour, 1.2, 0.85, ""}, series.name);
}

void draw_series(
    Svg& svg,
    const Frame& frame,
    const Series& series,
    const Look& look,
    const PlotOptions& options) {
  const std::string_view colour = look.colour;
  const std::string_view dashes = look.dashes;
  const Lines lines = pixel_lines(series.x, series.y, frame, options.log_y);
  if (series.reference) {
    svg.path(lines, {colour, 1.4, 1, dashes}, series.name);
    return;
  }
  draw_bars(svg, frame, series, colour, options.log_y);
  const size_t count = std::min(series.x.size(), series.y.size());
  if (options.smooth && count > kSmoothAbove) {
    svg.path(lines, {colour, 1, 0.28, ""}, series.name);
    svg.path(
        pixel_lines(series.x, moving_mean(series.y), frame, options.log_y),
        {colour, 2.2, 1, dashes},
        series.name);
  } else {
    svg.path(lines, {colour, 1.8, 1, dashes}, series.name);
  }
  for (const auto& line : lines) {
    // A point without neighbours has no line that would show it.
    if (count < kDotsBelow || line.size() == 1) {
      for (const auto& [x, y] : line) {
        svg.circle(x, y, 2.6, colour);
      }
    }
  }
}

}  // namespace

std::string plot_svg(
    const std::vector<Series>& series,
    const PlotOptions& options) {
  const int width = std::max(options.width, 200);
  const int height = std::max(options.height, 150);
  Range x_range;
  Range y_range;
  bool whole_x = true;  // steps and epochs have no halves
  for (const Series& one : series) {
    for (size_t i = 0; i < std::min(one.x.size(), one.y.size()); ++i) {
      if (drawable(one.x[i], one.y[i], options.log_y)) {
        x_range.take(one.x[i]);
        whole_x = whole_x && one.x[i] == std::floor(one.x[i]);
        y_range.take(one.y[i]);
        if (has_bar(one, i, options.log_y)) {
          y_range.take(one.low[i]);
          y_range.take(one.high[i]);
        }
      }
    }
  }
  Svg svg(width, height);
  double top = kMargin + kTitleText;
  svg.text(kMargin, top - 2, options.title, "title");
  if (y_range.empty()) {
    svg.text(width / 2.0, height / 2.0, "no data", "empty", Anchor::kMiddle);
    return std::move(svg).finish();
  }
  const std::vector<Look> looks = looks_of(series);
  Legend legend;
  if (series.size() > 1) {
    for (size_t i = 0; i < series.size(); ++i) {
      legend.items.push_back(
          {series[i].name, looks[i].colour, looks[i].dashes});
    }
  }
  top += 14;
  top += legend.draw(&svg, kMargin, top + 5, width - 2 * kMargin);
  svg.text(kMargin, top + 9, options.y_label, "label");
  Frame frame;
  frame.top = top + 23;
  frame.bottom = height - kTickRoom - 30;
  // Legends of many series take their room from the paper, not the plot.
  frame.bottom = std::max(frame.bottom, frame.top + 60);
  const double tall = frame.bottom - frame.top;
  if (options.from_zero) {
    y_range.take(0);
  }
  // Extremes of doubles would overflow where ranges are subtracted.
  constexpr double kMost = 1e300;
  y_range.low = std::clamp(y_range.low, -kMost, kMost);
  y_range.high = std::clamp(y_range.high, -kMost, kMost);
  x_range.low = std::clamp(x_range.low, -kMost, kMost);
  x_range.high = std::clamp(x_range.high, -kMost, kMost);
  frame.y =
      options.log_y
          ? log_axis(y_range.low, y_range.high)
          : linear_axis(
                y_range.low, y_range.high, static_cast<int>(tall / 48), true);
  double label_width = 0;
  for (const auto& label : frame.y.labels) {
    label_width = std::max(label_width, text_width(label, kSmallText));
  }
  frame.left = kMargin + label_width + 10;
  frame.right = width - kMargin - 10;
  const double wide = frame.right - frame.left;
  frame.x = linear_axis(
      x_range.low, x_range.high, static_cast<int>(wide / 80), false, whole_x);
  draw_grid(svg, frame, options);
  for (size_t i = 0; i < series.size(); ++i) {
    draw_series(svg, frame, series[i], looks[i], options);
  }
  return std::move(svg).finish();
}

}  // namespace lockstep::record
